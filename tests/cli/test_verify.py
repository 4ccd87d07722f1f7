"""The verify command: what it finds, prints and exits with."""

import math
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import run as command
from command_line import succeed
from sampling import default_of

import dml_jax
from dml_jax import reference
from dml_jax.cli import devices, verify, verify_cases
from dml_jax.cli.verify_cases import ROWS, Row

OPERATORS = [name for name in dml_jax.__all__ if name in reference.__all__]
CPU = jax.devices("cpu")[0]
HEADER = ["device", "operator", "cases", "wrong", "ratio to a copy"]


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_ratio", lambda *_: 1.0)


@pytest.mark.usefixtures("untimed", "x32")
@pytest.mark.parametrize("cases", default_of([2, 9], 2))
def test_every_operator_is_right(cases: int):
    # The checks of JAX are off: NaNs and infinities are among the data.
    with jax.debug_nans(True), jax.debug_infs(True), jax.transfer_guard("disallow"):
        out = succeed("verify", "--device", "cpu:0", "--cases", str(cases))
    *lines, verdict = out.splitlines()
    header, *rows = [re.split(" {2,}", line) for line in lines]
    assert header == HEADER
    names = [*OPERATORS, "reverse_sequence gradient"]
    assert sorted(row[1] for row in rows) == sorted(names)
    assert {(*row[:1], *row[2:]) for row in rows} == {
        ("cpu:0", str(cases), "0", "1.00")
    }
    total = cases * len(ROWS)
    assert verdict == f"Right: all {total} cases equal the reference."


def test_an_operator_is_timed():
    words = ("--device", "cpu:0", "--cases", "1", "--only", "slice1")
    out = succeed("verify", *words)
    assert float(out.splitlines()[-2].split()[-1]) > 0


@pytest.mark.usefixtures("untimed")
def test_every_device_is_the_default():
    assert devices.every()[: jax.local_device_count()] == jax.local_devices()
    assert CPU in devices.every()
    with mock.patch.object(verify, "_problem", return_value="") as called:
        assert (
            command("verify", "--seed", "7", "--cases", "2", "--only", "slice")[0] == 0
        )
    compared = [call.args[1:3] for call in called.call_args_list]
    assert compared == [(n, device) for device in devices.every() for n in (7, 8)]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_only_sequences_of_floats_may_differ_by_one_unit(dtype: str):
    one = np.ones(2, dtype)
    above, far = np.nextafter(one, 2), np.nextafter(np.nextafter(one, 2), 2)
    nan, inf = np.full(2, np.nan, dtype), np.full(2, np.inf, dtype)
    for actual, expected in [(above, one), (-nan, nan)]:
        assert not verify._difference(actual, expected, "fill_value_sequence")
        assert verify._difference(actual, expected, "fill_value_constant")
    zero = 0 * one
    for actual, expected in [(far, one), (nan, one), (one, inf), (-zero, zero)]:
        assert verify._difference(actual, expected, "fill_value_sequence")


def flip_a_bit(result: jax.Array) -> np.ndarray:
    array = np.array(result)
    bits = np.atleast_1d(array).reshape(-1, 1).view(np.uint8)
    bits[-1:, -1:] ^= 1
    return array


BREAKAGES: dict[str, Callable[[jax.Array], Any]] = {
    "elements differ": flip_a_bit,
    "of shape": lambda result: jnp.expand_dims(result, 0),
    "instead of": lambda result: result.astype(jnp.complex64),
}


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize("problem", default_of(BREAKAGES, "elements differ"))
@pytest.mark.parametrize("name", OPERATORS)
def test_a_broken_operator_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, problem: str
):
    """The first wrong case is repeated by the options that the verdict names."""
    right = getattr(dml_jax, name)
    row = next(row for row in ROWS if row.function == name)
    monkeypatch.setattr(verify, "ROWS", [row])
    monkeypatch.setattr(
        dml_jax, name, lambda **given: BREAKAGES[problem](right(**given))
    )
    words = ("--device", "cpu:0", "--cases", "4", "--only", name, "--seed", "3")
    status, out, err = command("verify", *words)
    *_, line, verdict = out.splitlines()
    assert not err, err
    assert status == 1
    assert re.split(" {2,}", line)[1:] == [name, "4", "4", "-"]
    assert verdict.startswith(f"Wrong: 4 of 4 cases; the first is {name} of ")
    assert problem in verdict

    again = verdict.partition("; repeat it with ")[2].split()
    status, out, _ = command("verify", *again)
    assert status == 1
    assert out.splitlines()[-1] == verdict.replace("4 of 4", "1 of 1")
    monkeypatch.setattr(dml_jax, name, right)
    assert command("verify", *again)[0] == 0


@pytest.mark.usefixtures("untimed", "with_jit")
def test_an_operator_that_is_wrong_for_literals_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    """As if XLA simplified its program incorrectly."""
    right = dml_jax.fill_value_constant

    def wrong(**given: Any) -> Any:
        y = right(**given)
        return jnp.expand_dims(y, 0) if isinstance(y, jax.core.Tracer) else y

    monkeypatch.setattr(dml_jax, "fill_value_constant", wrong)
    words = ("--device", "cpu:0", "--cases", "5", "--only", "fill_value_constant")
    status, out, _ = command("verify", *words)
    assert (status, out.splitlines()[-1][:20]) == (1, "Wrong: 1 of 5 cases;")


@pytest.mark.usefixtures("untimed")
def test_a_broken_gradient_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verify, "ROWS", [row for row in ROWS if row.is_gradient])
    monkeypatch.setattr(verify_cases, "_gradient", lambda input, **_: input + input)
    status, out, _ = command("verify", "--device", "cpu:0", "--cases", "1")
    assert status == 1
    assert "the first is reverse_sequence gradient of float16 on cpu:0" in out


@pytest.mark.usefixtures("untimed")
def test_an_operator_that_raises_is_wrong(monkeypatch: pytest.MonkeyPatch):
    fail = mock.Mock(side_effect=RuntimeError("no such\ninstruction"))
    monkeypatch.setattr(dml_jax, "slice", fail)
    words = ("verify", "--device", "cpu:0", "--cases", "2", "--only", "slice")
    status, out, err = command(*words)
    assert not err, err
    assert status == 1
    assert ": RuntimeError: no such instruction; repeat it " in out.splitlines()[-1]
    status, debugged, err = command(*words, "--debug")
    assert (status, debugged) == (1, out)
    assert err.count("Traceback") == 2
    monkeypatch.setattr(dml_jax, "slice", mock.Mock(side_effect=KeyboardInterrupt))
    assert command(*words)[::2] == (130, "dml_jax: interrupted\n")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_default_run_has_every_layout_in_every_dtype(row: Row):
    count = len(row.dtypes) * verify_cases._LAYOUTS
    assert count <= 300
    cases = [row.case(number, row.dtypes)[0] for number in range(count)]
    shapes = {case.expected().shape for case in cases[:: len(row.dtypes)]}
    assert len(shapes) > verify_cases._LAYOUTS // 2
    assert any(0 in shape for shape in shapes)
    assert any(1 in shape for shape in shapes)
    assert all(math.prod(shape) <= 1000 for shape in shapes)


def test_cases_have_lengths_at_both_ends_and_beyond():
    random = np.random.default_rng(0)
    lengths = {int(n) for n in verify_cases.random_lengths(random, (100,), 7)}
    assert {-1, 0, 1, 3, 7, 8, 2**31 - 1} <= lengths
