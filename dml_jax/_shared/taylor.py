"""Rules for Taylor mode, `jax.experimental.jet`.

A linear map applies to each coefficient of a Taylor polynomial.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core

from dml_jax._shared import jax_versions

_rules: dict[Any, Any] = {}
with jax_versions.optional("`jax.experimental.jet`"):
    from jax.experimental import jet

    _rules = jet.jet_rules


def define_linear(
    primitive: jax.extend.core.Primitive, constants: Sequence[int] = ()
) -> None:
    """Registers a primitive that is linear in all operands except `constants`."""
    _rules[primitive] = functools.partial(_linear, primitive, constants)


def refuse(primitive: jax.extend.core.Primitive, error: Callable[..., Any]) -> None:
    """Registers `error`, which raises, for a primitive without Taylor mode."""
    _rules[primitive] = error


def _linear(
    primitive: Any, constants: Any, primals: Any, series: Any, **params: Any
) -> tuple[Any, list[Any]]:
    def bind(operands: Sequence[Any]) -> Any:
        operands = [
            primal if i in constants else operand
            for i, (primal, operand) in enumerate(zip(primals, operands, strict=True))
        ]
        return primitive.bind(*operands, **params)

    return bind(primals), [bind(terms) for terms in zip(*series, strict=True)]
