"""What the benchmarks compute, their command line, and the figures in documents."""

import collections
import functools
import itertools
import json
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_close
from onnx_models import parse

import benchmarks.workloads
from benchmarks import (
    measure,
    networks,
    peers,
    programs,
    random_shapes,
    recurrent,
    recurrent_networks,
    tables,
)
from benchmarks.command import main
from benchmarks.measure import Candidate, Settings
from benchmarks.programs import Arrays
from benchmarks.random_shapes import random_workloads
from benchmarks.recurrent_networks import OURS
from benchmarks.workloads import GROUPS, Device, Workload, workloads
from dml_jax import onnx_backend, reference

pytestmark = pytest.mark.exhaustive

Write = Callable[[str, Any], pathlib.Path]
END = "<!-- end of figures -->\n"


def tiny() -> dict[str, list[Workload]]:
    """The distinct workloads at tiny size, in lists that are compiled together."""
    distinct, lists = set(), collections.defaultdict(list)
    for workload in workloads("cpu", 256):
        options = tuple(workload.options.items())
        program = workload.group, workload.operator, workload.dtype, workload.shape
        if (program, options) not in distinct:
            distinct.add((program, options))
            lists[f"{workload.group}-{workload.dtype}"].append(workload)
    return lists


TABLE, TINY = workloads("cpu", 256), tiny()


def reference_of(workload: Workload, arrays: Arrays) -> np.ndarray:
    """The result of the NumPy reference. The gradient of a reversal is a reversal."""
    function = programs.operator(workload, reference)
    if workload.group == "pipeline":
        function = programs.program(workload, function)
    return np.asarray(function(*(np.asarray(array)[()] for array in arrays)))


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize("similar", TINY.values(), ids=TINY)
def test_ours_and_every_peer_agree_with_the_reference(
    similar: list[Workload], capsys: pytest.CaptureFixture[str]
) -> None:
    @jax.jit
    def together(arrays: list[Arrays]) -> Any:
        functions = [programs.functions(workload) for workload in similar]
        return [
            {name: function(*x) for name, function in named.items()}
            for x, named in zip(arrays, functions, strict=True)
        ]

    with jax.enable_x64(similar[0].dtype.itemsize == 8):
        arrays = [programs.arrays(workload) for workload in similar]
        made = together(arrays)
        for workload, x, results in zip(similar, arrays, made, strict=True):
            expected = reference_of(workload, x)
            results |= {c.name: c.call() for c in peers.peers(workload, x, "cpu")}
            if "torch" in results:
                results["torch"] = jax.dlpack.from_dlpack(results["torch"])
            results.pop("flax", None)  # which reverses the padding, too
            if workload.operator == "fill_value_sequence":
                del results["jnp"]  # which rounds differently
            for name, result in results.items():
                result = np.asarray(result)
                np.testing.assert_array_equal(
                    result, expected, f"{workload.name}: {name}"
                )
                assert result.dtype == expected.dtype
    assert not capsys.readouterr().err


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [(None, 4e7, 7e9), (2**20, 1e6, 2e7), (256, 1e3, 1e5)],
)
def test_table_has_every_group_and_no_name_twice(
    device: Device, limit: int | None, least: float, most: float
) -> None:
    table = workloads(device, limit)
    assert {workload.group for workload in table} == set(GROUPS)
    names = [workload.name for workload in table]
    assert len(set(names)) == len(names)
    largest = max(workload.bytes_read + workload.bytes_written for workload in table)
    assert least < largest < most


def test_strided_reads_are_counted_in_whole_sectors() -> None:
    (workload,) = (w for w in workloads("gpu") if w.name == "slice/1x2/float32")
    assert workload.bytes_written == 16379 * 8189 * 4
    assert workload.bytes_read == 16379 * 16384 * 4  # element 7 lies in the first one
    (workload,) = (w for w in workloads("gpu") if w.name == "slice/crop/uint8")
    assert workload.bytes_read == 64 * 256 * 256 * 3  # no row shares one with the next


def test_each_candidate_comes_after_both_neighbours() -> None:
    """What ran before may leave its memory in the cache, or new.

    So a call that is not timed precedes the batch, which has one call here.
    """
    order: list[str] = []
    names = ["memcpy", "dml_jax", "jnp"]
    calls = [Candidate(name, lambda name=name: order.append(name)) for name in names]
    measure.samples(calls, Settings(4, 0.0))
    rounds = order[-8 * len(names) :]  # before, to find how many calls a batch has
    assert rounds[::2] == rounds[1::2] == [*names, *names[::-1]] * 2


# The command line ---------------------------------------------------------------------


def summary(median: float) -> dict[str, float]:
    """Quartiles that differ by 5 %."""
    return dict(median=median, q1=0.95 * median, q3=1.05 * median)


def record(name: str, ratio: float) -> dict[str, Any]:
    """A record with the ratio of dml_jax to a memcpy."""
    return dict(
        name=f"reverse/{name}/float32",
        dtype="float32",
        shape=[2, 8],
        candidates=dict(dml_jax=dict(ratio=summary(ratio))),
    )


@pytest.fixture
def written(tmp_path: pathlib.Path) -> Write:
    """Writes a result, or text, to a file of that name."""

    def write(name: str, content: Any) -> pathlib.Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def named(**ratios: float) -> dict[str, Any]:
    """A result with one record for each ratio of dml_jax."""
    return dict(
        schema=2,
        options=dict(device="cpu", kind="workloads", quick=False),
        records=[record(name, ratio) for name, ratio in ratios.items()],
    )


def test_compare_fails_where_a_ratio_grew_beyond_spread_and_tolerance(
    written: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(written("old.json", named(rows=1.0, columns=2.0, pairs=1.0, gone=1.0)))
    new = str(written("new.json", named(rows=1.05, columns=2.5, pairs=0.5, come=1.0)))
    assert main(["compare", old, new]) == 1
    title, rows, columns, pairs = capsys.readouterr().out.splitlines()
    assert title.split()[-3:] == ["old", "new", "new/old"]
    assert rows.split() == ["reverse/rows/float32", "1.00", "1.05", "1.05"]
    assert columns.split()[-2:] == ["1.25", "slower"]
    assert pairs.split()[-2:] == ["0.50", "faster"]
    assert main(["compare", old, new, "--tolerance", "1.3"]) == 0
    assert main(["compare", new, old, "--tolerance", "3"]) == 0


def records_of(path: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a file, which has a line for each."""
    _, *lines, _ = path.read_text().splitlines()
    records = [json.loads(line.removesuffix(",")) for line in lines]
    assert records == json.loads(path.read_text())["records"]
    return records


GOOD = named(rows=1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        (GOOD | dict(schema=1), "not a result of schema 2"),
        (named(other=1.0), "no workload in common"),
        (GOOD | dict(options=dict(device="gpu", quick=False)), "device is gpu in one"),
    ],
)
def test_bad_result_is_refused_in_one_line(
    content: Any, message: str, written: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = written("bad.json", content), written("good.json", GOOD)
    assert main(["compare", str(bad), str(good)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.usefixtures("with_jit")
def test_record_from_end_to_end(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(random_shapes.BYTES, "cpu", (2**12, 2**14))
    monkeypatch.setattr(benchmarks.workloads, "workloads", lambda *_: TABLE)
    words = ["--device", "cpu", "--seconds", "1"]
    assert main(["record", *words, "--output", str(tmp_path / "new")]) == 0
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["random-cpu.json", "workloads-cpu.json"]
    path = tmp_path / "new" / "random-cpu.json"
    found = json.loads(path.read_text())
    assert found["versions"]["jax"] == jax.__version__
    first = records_of(path)[0]
    assert first["name"] == next(random_workloads(0, "cpu")).name
    assert first["candidates"].keys() == {
        *("memcpy", "dml_jax", "jnp", "dml_jax_between", "jnp_between")
    }
    figures = first["candidates"]["dml_jax"]["seconds"]
    assert figures["q1"] <= figures["median"] <= figures["q3"]
    assert tables.whole(found) in capsys.readouterr().out
    fixed = json.loads((tmp_path / "new" / "workloads-cpu.json").read_text())
    assert fixed["records"][0]["name"] == "fill/sequence/float32"
    assert main(["compare", str(path), str(path)]) == 0
    assert main(["plot", str(path), "--output", str(tmp_path)]) == 0
    assert (tmp_path / "random-cpu.png").exists()


@pytest.mark.usefixtures("with_jit")
def test_recurrent_networks(tmp_path: pathlib.Path) -> None:
    """All compute the same outputs, and gradients in 16 bits have an error."""
    words = ["recurrent", "--device", "cpu", "--quick", "--output", str(tmp_path)]
    assert main(words) == 0
    path = tmp_path / "recurrent-cpu.json"
    of_groups = {record["group"]: record for record in records_of(path)}
    names = [f"{ours}, {mode}" for ours in OURS for mode in ("forward", "step")]
    assert [*of_groups] == [*names, "bidirectional_scan, gradient"]
    for group, record in of_groups.items():
        ours, mode = group.split(", ")
        found = record["candidates"]
        assert found.keys() >= networks_of(ours, "cpu").keys()
        for name, figures in found.items():
            if mode == "gradient":
                assert 0 < figures["largest_error"] < 0.1
            elif mode == "forward" and name != "torch, padded":
                assert figures["largest_error"] < 1e-5
    document = tmp_path / "page.md"
    blocks = "recurrent cpu", "recurrent-gradients cpu"
    document.write_text("".join(f"<!-- figures: {b} -->\n{END}" for b in blocks))
    text = tables.rewritten(document, tmp_path)
    assert "\n| `bidirectional_scan` | `lax.scan of both` | " in text
    assert "\n| `bidirectional_scan` | 1.0 | 1.0 | 0.0" in text
    assert main(["plot", str(path), "--output", str(tmp_path)]) == 0
    assert (tmp_path / "recurrent-cpu.png").exists()


def networks_of(ours: str, device: Device) -> dict[str, Any]:
    """Those in JAX, without cuDNN."""
    return recurrent_networks.networks(ours, device, np.dtype(np.float16))


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize("ours", OURS)
def test_recurrent_networks_have_the_same_step(ours: str) -> None:
    arrays = recurrent.arrays(recurrent.QUICK, OURS[ours], 0)
    networks = networks_of(ours, "cpu") | networks_of(ours, "gpu")
    steps = {
        name: jax.jit(functools.partial(recurrent_networks.step, network))(*arrays)
        for name, network in networks.items()
    }
    expected = steps.pop("lax.scan, 1 step")
    assert jax.tree.all(jax.tree.map(lambda x, y: (x != y).any(), expected, arrays[0]))
    for found in steps.values():
        assert_close(found, expected)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_random_recurrent_networks(device: Device) -> None:
    """They depend on the seed alone, and those of a CPU are of less work."""
    found, again = (
        list(itertools.islice(recurrent._tasks(0, device), 30)) for _ in range(2)
    )
    assert found == again
    for size, *_ in found[4:]:
        assert 8 <= size.batch <= 256
        assert 50 <= size.steps <= 1500
        assert 40 <= size.features <= 512
        assert 64 <= size.units <= 1024
        assert size.multiplications <= recurrent.MULTIPLICATIONS[device]
    assert {dtype for _, dtype, _ in found} == set(recurrent.DTYPES)
    assert {size.layers for size, *_ in found} == {1, 2, 3}


RANDOM = np.random.default_rng(0)
TABLE_OF_WORDS, WEIGHT, TARGET, FRAMES = (
    RANDOM.standard_normal(shape, np.float32)
    for shape in ((5, 4), (4, 2), (3, 2), (3, 4))
)
TOKENS = np.array([4, 0, 4])
LINEAR = parse("float[3,4] x => float[3,2] y {y = MatMul(x, w)}", w=WEIGHT)
OF_WORDS = parse(
    "int64[3] n => float[3,2] y {x = Gather(table, n) y = MatMul(x, w)}",
    table=TABLE_OF_WORDS,
    w=WEIGHT,
)


def gradient_by_hand(given: np.ndarray) -> networks.Gradient:
    """Of the mean square of the distance from the target, for frames or tokens."""
    x = FRAMES if given is FRAMES else TABLE_OF_WORDS[given]
    of_output = (x @ WEIGHT - TARGET) / 3
    if given is FRAMES:
        return dict(w=x.T @ of_output)
    of_table = np.zeros_like(TABLE_OF_WORDS)
    np.add.at(of_table, given, of_output @ WEIGHT.T)
    return dict(w=x.T @ of_output, table=of_table)


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("float32", 0, 1e-6), ("bfloat16", 1e-4, 2e-2)]
)
@pytest.mark.parametrize(
    ("source", "given"), [(LINEAR, FRAMES), (OF_WORDS, TOKENS)], ids=["floats", "words"]
)
def test_step_of_a_model_has_the_gradient(
    source: Any, given: np.ndarray, dtype: str, least: float, most: float
) -> None:
    model = onnx_backend.prepare(source)
    arrays = model.params, [jax.numpy.asarray(given)], TARGET
    candidate, gradient, facts = networks.program(model, *arrays, dtype)
    found, expected = gradient(candidate.call()), gradient_by_hand(given)
    assert {n: x.dtype.name for n, x in found.items()} == dict.fromkeys(
        expected, "float32"
    )
    assert least <= networks.largest_error(found, expected) < most
    assert facts()["memory_bytes"] > 0


class Tensor(types.SimpleNamespace):
    """What a run asks of a tensor of torch."""

    def numpy(self) -> np.ndarray:
        return self.array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape


def program_of_torch(*arguments: Any) -> networks.Program:
    """As where torch.compile finds no compiler; the gradient is twice the right one."""
    if arguments[4:]:  # a backend
        raise RuntimeError("no compiler\nin many lines")
    expected = gradient_by_hand(FRAMES)
    doubled = {name: 2 * x for name, x in expected.items()}
    return Candidate("torch", lambda: None), lambda _: doubled, dict


def network_of_torch(name: str, _: bool) -> Any:
    """One network can be exported, and no other."""
    if name != "BERT base":
        raise ValueError("no export")
    return types.SimpleNamespace(to=lambda _: None), [Tensor(array=FRAMES)]


@pytest.mark.usefixtures("with_jit")
def test_networks_from_end_to_end_in_the_place_of_torch(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_torch = types.SimpleNamespace(
        network=network_of_torch,
        exported=lambda *_: LINEAR,
        target_and_gradient=lambda *_: (TARGET, gradient_by_hand(FRAMES)),
        program=program_of_torch,
        free=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "benchmarks.torch_networks", of_torch)
    monkeypatch.setattr(benchmarks, "torch_networks", of_torch, raising=False)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setattr(networks, "PACKAGES", ())
    words = ["networks", "--device", "cpu", "--quick", "--output", str(tmp_path)]
    assert main([*words, "--only", "[BV]*"]) == 1
    path = tmp_path / "networks-cpu.json"
    found, failed = records_of(path)[:2], records_of(path)[2:]
    assert [r["name"] for r in failed] == ["networks/ViT-B16", "networks/BiLSTM tagger"]
    assert not any(record["candidates"] for record in failed)
    assert [record["dtype"] for record in found] == ["float32", "bfloat16"]
    for record in found:
        assert record["candidates"].keys() == {"dml_jax", "torch"}
        assert record["baseline"] == "torch"
        assert record["matched"] == record["parameters"] == 1
        assert record["candidates"]["torch"]["largest_error"] == 1
        assert record["candidates"]["dml_jax"]["largest_error"] < 0.1
    error = capsys.readouterr().err
    assert "without BERT base, float32, torch.compile: no compiler\n" in error
    assert "ViT-B16: ValueError: no export\n" in error
    document = tmp_path / "page.md"
    document.write_text(marked("networks cpu"))
    text = tables.rewritten(document, tmp_path)
    assert "\n| BERT base | float32 | " in text
    assert text.count("\N{EN DASH}") == 2 * 5
    assert main(["plot", str(path), "--output", str(tmp_path)]) == 0


def test_networks_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(networks, "PACKAGES", ("json", "no_such_package"))
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    words = ["networks", "--device", "cpu", "--output", str(tmp_path)]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "benchmarks: networks: not installed: pip install no_such_package\n"
    )


def test_a_run_that_is_stopped_keeps_its_records(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def records(*_: Any) -> Iterator[dict[str, Any]]:
        yield from (record("rows", 1.0), record("columns", 1.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(recurrent, "records", records)
    words = ["recurrent", "--device", "cpu", "--output", str(tmp_path)]
    assert main(words) == 130
    assert len(records_of(tmp_path / "recurrent-cpu.json")) == 2


def test_workload_that_differs_from_plain_jax_is_reported(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(random_shapes.BYTES, "cpu", (2**12, 2**14))
    monkeypatch.setattr(programs, "idiom", lambda _: lambda x, _: x)
    words = ["--device", "cpu", "--seconds", "0", "--output", str(tmp_path)]
    assert main(["random", *words]) == 1
    name = next(random_workloads(0, "cpu")).name
    assert f"{name}: dml_jax differs from plain JAX" in capsys.readouterr().err
    (failed,) = json.loads((tmp_path / "random-cpu.json").read_text())["records"]
    assert failed["candidates"] == {}


# Figures in documents -----------------------------------------------------------------

RESULTS = pathlib.Path(tables.__file__).with_name("results")


def marked(words: str) -> str:
    """A document with one table."""
    return f"Before.\n\n<!-- figures: {words} -->\n{END}\nAfter.\n"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_a_result_has_a_line_for_each_record_and_is_shown(
    path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    for record in records_of(path):
        assert f"\n| {record['name'].partition('/')[2]} | " in shown


def test_figures_of_the_documents_are_those_of_the_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tables", "--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (marked("speed gpu"), "a table is one of machine, layouts"),
        (marked("machine random-gpu").replace(END, ""), "without its partner"),
        (END + marked("machine random-gpu"), "without its partner: <!-- end"),
        (marked("layouts abacus"), "random-abacus.json"),
    ],
)
def test_bad_marker_is_refused(document: str, message: str, written: Write) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        tables.rewritten(written("bad.md", document), RESULTS)
