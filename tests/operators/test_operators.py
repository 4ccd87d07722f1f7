"""Published vectors, and what random calls do not show of transformations."""

import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import EXAMPLES, PUBLISHED, array_of, linear
from sampling import default_of

import dml_jax
from dml_jax import reference

VECTORS = [vector for vector in PUBLISHED if hasattr(dml_jax, vector["op"])]
assert len(VECTORS) == 18


@pytest.mark.parametrize("module", [dml_jax, reference], ids=["dml_jax", "reference"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['op']}-{v['name']}")
def test_published_vectors(vector: dict[str, Any], module: ModuleType) -> None:
    arrays = {name: array_of(value) for name, value in vector["inputs"].items()}
    result = getattr(module, vector["op"])(**arrays, **vector["attributes"])
    assert_same_bits(result, array_of(vector["output"]))


# Transformations ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "is_off", default_of([False, True], False), ids=["jit", "no-jit"]
)
@pytest.mark.parametrize("name", EXAMPLES)
def test_debug_nans_finds_them(name: str, is_off: bool) -> None:
    case = EXAMPLES[name]
    nans = {name: case.arrays[name] * np.float32(np.nan) for name in linear(case)}
    with jax.debug_nans(True), jax.disable_jit(is_off):
        case.run()
        with pytest.raises(FloatingPointError, match=r"^invalid value \(nan\)"):
            case.run(**nans)


# Names --------------------------------------------------------------------------------

X = np.arange(6, dtype=np.float32).reshape(2, 3)
NODE = functools.partial(
    dml_jax.reverse_sequence, sequence_lens=np.array([1, 2, 0]), name="backwards"
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_operator_is_named_in_the_lowered_text(name: str) -> None:
    case = EXAMPLES[name]
    lowered = jax.jit(lambda arrays: case.run(**arrays)).lower(case.arrays)
    assert f"/{case.function}/" in lowered.as_text(debug_info=True).replace('"', "/")


def test_name_is_a_scope() -> None:
    assert "backwards/" in jax.jit(NODE).lower(X).as_text(debug_info=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["reversed", ["reversed"], np.array(["reversed"])])
@pytest.mark.parametrize(("policy_name", "saved"), [("reversed", 2), ("other", 1)])
def test_output_name_can_be_saved_by_a_remat_policy(
    policy_name: str,
    saved: int,
    name: Any,
    training: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = jax.checkpoint_policies.save_only_these_names(policy_name)

    @functools.partial(jax.checkpoint, policy=policy)
    def function(x: jax.Array) -> jax.Array:
        y = NODE(jnp.sin(x), training=training, specified_outputs_name=name)
        return jnp.sum(jnp.sin(y))

    jax.ad_checkpoint.print_saved_residuals(function, X)
    # The argument is always there; the named output only by the policy that names it.
    assert capsys.readouterr().out.count("[2,3]") == saved
