"""The devices that commands run on, and their names on the command line."""

from typing import Any

import jax


def every() -> list[Any]:
    """The devices of JAX's default platform, and the CPU's if JAX may use it."""
    default = _default_devices()
    try:
        cpus = jax.local_devices(backend="cpu")
    except RuntimeError:
        cpus = []
    return [*dict.fromkeys([*default, *cpus])]


def first(text: str | None) -> Any:
    """The first device that `named` gives, or JAX's default device."""
    return _default_devices()[0] if text is None else named(text)[0]


def named(text: str) -> list[Any]:
    """The devices of a `platform`, a `platform:id`, or part of a device's kind."""
    default = _default_devices()
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
    """The name of a device for `--device`."""
    return f"{device.platform}:{device.id}"


def _default_devices() -> list[Any]:
    try:
        return jax.local_devices()
    except AssertionError:  # raised by JAX, without a message
        config: Any = jax.config
        raise RuntimeError(
            f"JAX finds no device for JAX_PLATFORMS={config.jax_platforms}"
        ) from None
