"""Which devices a command is for, and what they are called."""

from __future__ import annotations

from typing import Any

import jax


def every() -> list[Any]:
    """The devices of JAX's default platform, and the CPU's, if JAX may use it."""
    devices = _of_default_platform()
    try:
        on_host = jax.local_devices(backend="cpu")
    except RuntimeError:
        on_host = []
    return [*devices, *(device for device in on_host if device not in devices)]


def first(text: str | None) -> Any:
    """The first device that the text names, or JAX's default one."""
    return _of_default_platform()[0] if text is None else named(text)[0]


def named(text: str) -> list[Any]:
    """The devices that the text names: `platform`, `platform:id`, or part of a kind."""
    default = _of_default_platform()
    platform, _, index = text.partition(":")
    try:
        devices = jax.devices(platform or "none")
    except RuntimeError:
        devices, index = default, ""
        devices = [d for d in devices if text and text.lower() in d.device_kind.lower()]
    if index:
        devices = [d for d in devices if str(d.id) == index]
    if not devices:
        names = ", ".join(f"{name_of(d)} ({d.device_kind})" for d in default)
        raise ValueError(f"`--device` must be one of {names}; got {text}")
    return devices


def name_of(device: Any) -> str:
    """A device as `--device` takes it."""
    return f"{device.platform}:{device.id}"


def _of_default_platform() -> list[Any]:
    try:
        return jax.local_devices()
    except AssertionError:  # JAX does not say for what it looked
        config: Any = jax.config
        raise RuntimeError(
            f"JAX finds no device for JAX_PLATFORMS={config.jax_platforms}"
        ) from None
