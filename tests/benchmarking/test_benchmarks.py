"""What the benchmarks compute, their command line, and the figures in documents."""

import collections
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import candidates, measure, peers, programs, tables
from benchmarks.command import main
from benchmarks.measure import Candidate, Settings
from benchmarks.programs import Arrays
from benchmarks.workloads import (
    GROUPS,
    RANDOM_ELEMENTS,
    RANDOM_KINDS,
    Device,
    Scale,
    Workload,
    min_large_bytes,
    random_workloads,
    workloads,
)

pytestmark = pytest.mark.exhaustive

Write = Callable[[str, Any], str]


def tiny() -> dict[str, list[Workload]]:
    """The distinct workloads at tiny size, in lists that are compiled together."""
    distinct, lists = set(), collections.defaultdict(list)
    for workload in workloads("cpu", "tiny"):
        program = workload.group if workload.group in ("backward", "pipeline") else ""
        options = tuple(workload.options.items())
        key = (program, workload.operator, workload.dtype, workload.shape, options)
        if workload.operator != "import" and key not in distinct:
            distinct.add(key)
            lists[f"{workload.group}-{workload.dtype}"].append(workload)
    return lists


TINY = tiny()


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    previous = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", previous)


# Flax reverses the padding too; the others are upper bounds of the speed.
OF_ANOTHER_MEANING = {"flip_all", "plus_one", "unreversed", "flax"}


@pytest.mark.usefixtures("quick_compilation", "with_jit")
@pytest.mark.parametrize("similar", TINY.values(), ids=TINY)
def test_ours_and_every_peer_agree_with_the_reference(similar: list[Workload]) -> None:
    @jax.jit
    def together(arrays: list[Arrays]) -> Any:
        functions = [candidates.functions(workload, "cpu") for workload in similar]
        return [
            {name: function(*x) for name, function in named.items()}
            for x, named in zip(arrays, functions, strict=True)
        ]

    arrays = [programs.arrays(workload) for workload in similar]
    for workload, x, results in zip(similar, arrays, together(arrays), strict=True):
        results |= peer_results(workload, x)
        expected = programs.expected(workload, x)
        for name in results.keys() - OF_ANOTHER_MEANING:
            np.testing.assert_array_equal(
                np.asarray(results[name]), expected, f"{workload.name}: {name}"
            )
            assert results[name].dtype == expected.dtype


def peer_results(workload: Workload, arrays: Arrays) -> dict[str, np.ndarray]:
    makers = peers.peers(workload, arrays, "cpu")
    with jax.enable_x64(False):  # flax adds positions to lengths of 32 bits
        found = [candidate for make in makers.values() if (candidate := make())]
        results = {candidate.name: candidate.call() for candidate in found}
    for candidate in found:
        candidate.wait(results[candidate.name])
    return {c.name: c.host(results[c.name]) for c in found}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("scale", ["full", "quick", "tiny"])
def test_table_has_every_group_and_no_name_twice(device: Device, scale: Scale) -> None:
    table = workloads(device, scale)
    assert list(dict.fromkeys(workload.group for workload in table)) == list(GROUPS)
    names = [workload.name for workload in table]
    assert len(set(names)) == len(names)
    largest = max(workload.bytes_read + workload.bytes_written for workload in table)
    least, most = {"full": (5e8, 7e9), "quick": (5e7, 2e8), "tiny": (1e4, 1e5)}[scale]
    assert least < largest < most


def test_strided_reads_are_counted_in_whole_sectors() -> None:
    (workload,) = (w for w in workloads("gpu") if w.name == "slice/1x2/float32")
    assert workload.bytes_written == 16379 * 8189 * 4
    assert workload.bytes_read == 16379 * 16384 * 4  # element 7 lies in the first one
    (workload,) = (w for w in workloads("gpu") if w.name == "slice/crop/uint8")
    assert workload.bytes_read == 64 * 256 * 256 * 3  # no row shares one with the next


# The command line ---------------------------------------------------------------------


def result(**ratios: float) -> dict[str, Any]:
    """A result with one record for each ratio, whose quartiles differ by 5 %."""

    def summary(median: float) -> dict[str, float]:
        return dict(median=median, q1=0.95 * median, q3=1.05 * median)

    records = [
        dict(
            name=f"reverse/{name}/float32",
            group="reverse",
            baseline="memcpy",
            dtype="float32",
            shape=[1],
            bytes_read=4,
            bytes_written=4,
            candidates=dict(
                memcpy=dict(seconds=summary(1e-3), ratio=summary(1.0)),
                dml_jax=dict(seconds=summary(1e-3 * ratio), ratio=summary(ratio)),
            ),
        )
        for name, ratio in ratios.items()
    ]
    return dict(schema=1, options=dict(device="cpu", quick=False), records=records)


@pytest.fixture
def written(tmp_path: pathlib.Path) -> Write:
    """Writes a result, or text, to a file of that name."""

    def write(name: str, content: Any) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


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


def test_compare_fails_where_a_ratio_grew_beyond_spread_and_tolerance(
    written: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old = written("old.json", result(rows=1.0, columns=2.0, pairs=1.0, gone=1.0))
    new = written("new.json", result(rows=1.05, columns=2.5, pairs=0.5, come=1.0))
    assert main(["compare", old, new]) == 1
    title, rows, columns, pairs = capsys.readouterr().out.splitlines()
    assert title.split()[-3:] == ["old", "new", "new/old"]
    assert rows.split() == ["reverse/rows/float32", "1.00", "1.05", "1.05"]
    assert columns.split()[-2:] == ["1.25", "slower"]
    assert pairs.split()[-2:] == ["0.50", "faster"]
    assert main(["compare", old, new, "--tolerance", "1.3"]) == 0
    assert main(["compare", new, old, "--tolerance", "3"]) == 0


GOOD = result(rows=1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        (GOOD | dict(schema=2), "not a result of schema 1"),
        (json.dumps(GOOD).replace("dml_jax", "another"), "not a whole result"),
        (json.dumps(GOOD).replace("0.95", "null"), "not a whole result"),
        (result(other=1.0), "no workload in common"),
        (GOOD | dict(options=dict(device="gpu", quick=False)), "device is gpu in one"),
    ],
)
def test_bad_result_is_refused_in_one_line(
    content: Any, message: str, written: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = written("bad.json", content)
    assert main(["compare", bad, written("good.json", GOOD)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--only", "nothing-of-this-name"],
        ["run", "--device", "abacus"],
        ["run", "--quick", "--only", "rows", "--output", "."],
        ["compare", "missing.json", "missing.json"],
        ["plot", "missing.json"],
        ["tables", "missing.md"],
        [],
    ],
    ids=" ".join,
)
def test_bad_arguments_are_refused_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(words)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("benchmarks: ")


@pytest.mark.usefixtures("with_jit")
def test_quick_run_from_end_to_end(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "result.json"
    words = ["--device", "cpu", "--quick", "--only", "scaling/rows/1e4"]
    assert main(["run", *words, "--output", str(path)]) == 0
    assert "scaling/rows/1e4" in capsys.readouterr().out
    (file,) = path.parent.iterdir()
    found = json.loads(file.read_text())
    assert found["options"]["only"] == "scaling/rows/1e4"
    assert found["versions"]["jax"] == jax.__version__
    record = found["records"][0]
    figures = record["candidates"]["dml_jax"]
    assert figures["seconds"]["q1"] <= figures["seconds"]["median"]
    assert record["candidates"]["memcpy"]["ratio"]["median"] == 1
    assert record["compile_seconds"] > 0
    assert main(["compare", str(path), str(path)]) == 0


@pytest.mark.usefixtures("with_jit")
def test_sweep_from_end_to_end(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(RANDOM_ELEMENTS, "cpu", (2**10, 2**12))
    path = tmp_path / "sweep-cpu.json"
    words = ["--seconds", "0", "--kinds", "flat", "fills", "--output", str(path)]
    assert main(["sweep", "--device", "cpu", *words]) == 0
    assert capsys.readouterr().out.splitlines()[4].split()[:2] == ["flat", "float32"]
    first, second = json.loads(path.read_text())["records"][:2]
    workload = next(random_workloads(0, "cpu", ["flat"]))
    assert first["name"] == workload.name
    assert first["options"] == workload.options
    assert first["candidates"].keys() == {
        *("memcpy", "called", "dml_jax", "jnp", "dml_jax_fused", "jnp_fused")
    }
    assert second["baseline"] == "memset"
    assert main(["plot", str(path), "--output", str(tmp_path / "plots")]) == 0
    assert [p.name for p in (tmp_path / "plots").iterdir()] == ["cpu-random.png"]


def test_sweep_reports_shapes_that_fail_or_differ(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(RANDOM_ELEMENTS, "cpu", (2**10, 2**12))
    monkeypatch.setattr(programs, "idiom", lambda _: lambda x, _: x)
    path = tmp_path / "sweep.json"
    words = ["--seconds", "0", "--kinds", "rows", "--output", str(path)]
    assert main(["sweep", "--device", "cpu", *words]) == 1
    name = next(random_workloads(0, "cpu", ["rows"])).name
    assert f"{name}: called differs from plain JAX" in capsys.readouterr().err
    assert json.loads(path.read_text())["options"]["failed"][0] == name


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_random_workloads_are_of_the_sizes_of_a_device(device: Device) -> None:
    rounds = itertools.islice(random_workloads(1, device), 14 * len(RANDOM_KINDS))
    found = list(rounds)
    least, most = RANDOM_ELEMENTS[device]
    unit = 4 if device == "gpu" else 1  # of bytes, or of elements
    sizes = [math.prod(w.shape) * (w.dtype.itemsize if unit == 4 else 1) for w in found]
    assert all(unit * least // 128 <= size <= unit * most for size in sizes)
    moved = [w.bytes_read + w.bytes_written for w in found]
    large = sum(nbytes >= min_large_bytes(device) for nbytes in moved)
    assert 0.4 < large / len(found) < 0.9
    assert len(set(sizes)) > len(found) // 2
    dtypes = [w.dtype.name for w in found]
    assert collections.Counter(dtypes)["float64"] == len(RANDOM_KINDS)


def test_interrupted_run_leaves_no_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(candidates, "compiled", interrupt)
    path = tmp_path / "result.json"
    words = ["--device", "cpu", "--only", "reverse/rows/float32", "-o", str(path)]
    assert main(["run", *words]) == 130
    assert not list(tmp_path.iterdir())


def test_plot_draws_a_picture_for_each_group(
    tmp_path: pathlib.Path, written: Write
) -> None:
    record = result(rows=1.0)["records"][0]
    scaling = record | dict(name="scaling/rows/1e4", group="scaling")
    path = written("result.json", GOOD | dict(records=[record, scaling]))
    assert main(["plot", path, "--output", str(tmp_path / "plots")]) == 0
    names = sorted(file.name for file in (tmp_path / "plots").iterdir())
    assert names == ["cpu-reverse.png", "cpu-scaling.png"]


# Figures in documents -----------------------------------------------------------------

PERFORMANCE = pathlib.Path(__file__).parents[2] / "docs" / "performance.md"
END = "<!-- end of figures -->\n"


def marked(words: str, figures: str = "") -> str:
    """A document with one table."""
    return f"Before.\n\n<!-- figures: {words} -->\n{figures}{END}\nAfter.\n"


def test_figures_of_the_guide_are_those_of_the_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tables", "--check"]) == 0
    assert not capsys.readouterr().out


def test_tables_changes_figures_only_and_once(
    written: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PERFORMANCE.read_text()
    old = text.replace("| rows | float32 |", "| lines | float32 |").replace(
        "NVIDIA H100 80GB HBM3,", "A machine,"
    )
    path = pathlib.Path(written("old.md", old))
    good = written("good.md", text)
    assert main(["tables", "--check", good, str(path)]) == 1
    assert capsys.readouterr().out.startswith(f"{path}: ")
    assert path.read_text() == old
    path.chmod(0o640)
    assert main(["tables", good, str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == 0o640
    assert main(["tables", str(path)]) == 0
    assert not capsys.readouterr().out
    assert sorted(file.name for file in path.parent.iterdir()) == ["good.md", "old.md"]


def whole(device: str, **ratios: float) -> dict[str, Any]:
    """A result with its machine; only its first record has `called`."""
    found = result(**ratios)
    records = [record | dict(shape=[2, 8]) for record in found["records"]]
    called = records[0]["candidates"]["dml_jax"]
    records[0]["candidates"] |= dict(called=called, torch=called)
    call = dict(name="latency/slice", group="latency", baseline="jitted")
    figures = dict(jitted=called, dml_jax=called)
    return found | dict(
        date="2026-01-02T03:04:05+00:00",
        versions=dict(jax="1", torch="2", onnxruntime="3", flax=None),
        machine=dict(
            device={"cpu": "cpu", "gpu": "NVIDIA H200"}[device],
            processor="Abacus",
            cpu_count=2,
        ),
        options=dict(device=device, quick=False),
        records=[*records, records[0] | call | dict(candidates=figures)],
    )


@pytest.fixture
def folder(tmp_path: pathlib.Path, written: Write) -> pathlib.Path:
    """A folder with a result of each device."""
    written("gpu.json", whole("gpu", rows=1.25, columns=8.0))
    written("cpu.json", whole("cpu", rows=1.256, columns=9.96))
    random = whole("gpu", rows=1.25, flat=4.0, small=10.0)
    for number, record in enumerate(random["records"][:3]):
        kind = record["name"].split("/")[1]
        moved = 2**28 if number < 2 else 2**20
        named = dict(name=f"random/{kind.replace('small', 'flat')}/0/2x2/float32")
        record |= dict(named, group="random", bytes_read=moved, bytes_written=moved)
    written("sweep-gpu.json", random | dict(records=random["records"][:3]))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("gpu machine", ["NVIDIA H200, jax 1, torch 2, 2026-01-02."]),
        (
            "gpu reverse float32; dml_jax called",
            [
                "| layout | dtype | shape | in a program | called |",
                "| --- | --- | --- | --- | --- |",
                "| rows | float32 | `[2, 8]` | 80 | 80 |",
                "| columns | float32 | `[2, 8]` | 12 | \N{EN DASH} |",
            ],
        ),
        (
            "cpu reverse; dml_jax called",
            [
                "| workload | in a program | called |",
                "| --- | --- | --- |",
                "| rows/float32 | 80 | 80 |",
                "| columns/float32 | 10 | \N{EN DASH} |",
            ],
        ),
        (
            "gpu random; called dml_jax",
            [
                "| random shapes | dtype | number | called: median (least) "
                "| in a program: median (least) |",
                "| --- | --- | --- | --- | --- |",
                "| rows | float32 | 1 | 80 (80) | 80 (80) |",
                "| flat | float32 | 1 | \N{EN DASH} | 25 (25) |",
            ],
        ),
    ],
)
def test_marker_says_which_table(
    words: str, lines: list[str], folder: pathlib.Path, written: Write
) -> None:
    path = pathlib.Path(written("document.md", marked(words, "old\n")))
    text = tables.rewritten(path, folder)
    assert text == marked(words, "\n".join([*lines, ""]))
    tables.save(text, path)
    assert tables.rewritten(path, folder) == text


def test_gains_are_over_plain_jax(folder: pathlib.Path, written: Write) -> None:
    """The median, least and most; of bounds only those that are known."""

    def record(name: str, plain: float, **ours: bool) -> dict[str, Any]:
        found = result(rows=2.0)["records"][0] | dict(name=name, bytes_read=2**28)
        found |= dict(group=name.partition("/")[0], generation="v5e")
        jnp = found["candidates"]["memcpy"] | dict(seconds=dict(median=plain))
        jnp["seconds"] |= dict(q1=plain, q3=plain)
        found["candidates"]["jnp"] = jnp
        found["candidates"]["dml_jax"] |= ours
        return found

    runs = {
        "gpu": [record("backward/rows/float32", 0.02)],
        "cpu": [],
        "sweep-gpu": [
            record(f"random/rows/{n}/-/float32", n * 1e-3) for n in (1, 2, 8)
        ],
        "sweep-cpu": [record("random/fills/0/-/float32", 3e-3)],
        "tpu": [
            record("reverse/rows-of-32/float32/v5e", 0.2),
            record("reverse/rows/float32/v5e", 0.6, is_lower_bound=True),
        ],
    }
    for name, records in runs.items():
        found = whole("cpu" if "cpu" in name else "gpu", rows=1.0)
        device = dict(device=name.removeprefix("sweep-"), quick=False)
        written(f"{name}.json", found | dict(options=device, records=records))
    words = "gpu cpu tpu gains v5e; dml_jax"
    path = pathlib.Path(written("document.md", marked(words)))
    lines = tables.rewritten(path, folder).splitlines()
    assert "| layout or operator | H200 | CPU | TPU v5e, predicted |" in lines
    assert "| rows | 1.0 (0.50 to 4.0) | \N{EN DASH} | 100 (100 to 100) |" in lines
    assert "| fills | \N{EN DASH} | 1.5 (1.5 to 1.5) | \N{EN DASH} |" in lines
    gradient = "| gradient of a reversal | 10 (10 to 10) | \N{EN DASH} | \N{EN DASH} |"
    assert gradient in lines


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (marked("abacus reverse float32; dml_jax"), "'abacus' is not a device"),
        (marked("gpu reverse float31; dml_jax"), "'float31' is not a device, a group"),
        (marked("gpu reverse; dml_jaxx"), "gpu.json has no 'dml_jaxx' in reverse"),
        (marked("gpu cpu reverse; dml_jax jnp"), "no table is made of this"),
        (marked("gpu machine").replace(END, ""), "without its partner: <!-- figures"),
        (END + marked("gpu machine"), "without its partner: <!-- end"),
        ("No figures.", "no place for figures is marked"),
    ],
)
def test_bad_marker_is_refused_in_one_line(
    document: str, message: str, written: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, old = written("bad.md", document), marked("gpu machine", "old\n")
    other = written("other.md", old)
    assert main(["tables", other, bad]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"benchmarks: {bad}: ")
    assert message in line
    assert pathlib.Path(bad).read_text() == document
    assert pathlib.Path(other).read_text() == old
