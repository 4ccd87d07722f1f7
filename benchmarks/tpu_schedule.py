"""What a program for TPU costs, from the dump of TPU's compiler.

The compiler writes the final schedule of every kernel of a program, and of the program
that calls them, to a file `*-<instruction>-<number>-final_bundles.txt`. A line of it is
a bundle: the instructions that the core issues in one cycle.

The cycles of a kernel are its bundles, times the trips of the loops around them. To
find these, the branches are followed: `Scalars` computes the scalars that a branch
depends on from the counters of its loop. A branch that depends on data is not known. A
forward branch then skips nothing, and a loop runs once, which makes the cycles a lower
bound. An inner loop is taken to run as often as in the middle of the outer one.

The bytes of a kernel are those that it copies from and to the main memory. If the sizes
of the copies are not known, they are those of the operands and the result in the main
memory, with the padding of their layouts.
"""

from __future__ import annotations

import functools
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.tpu_scalars import Scalars, Term, Values


class Cost(NamedTuple):
    """What an instruction of the program costs in total."""

    name: str
    cycles: float
    hbm_bytes: float
    is_lower_bound: bool


def costs(folder: pathlib.Path, hlo: str, granule: int, cores: int) -> list[Cost]:
    """The costs of the instructions of the one program whose dump is in `folder`.

    `hlo` is the text of the compiled program, `granule` the unit of copies in bytes,
    and `cores` the number of cores that a kernel can be shared among.
    """
    instructions = parse_hlo(hlo)
    (main,) = folder.glob("*-TLP-*[0-9]-final_bundles.txt")
    found = []
    for name, instruction in instructions.items():
        if instruction.opcode == "copy-start":
            nbytes = instruction.bytes_of_async_copy(instructions)
            found.append(Cost(name, 0, nbytes, False))
        if instruction.opcode == "call-start":  # on a SparseCore, without a schedule
            found.append(Cost(name, 0, hbm_bytes(instruction.shape), True))
    for name, runs, is_lower_bound in Schedule(main.read_text()).calls():
        kernel = _schedule_of(folder, name)
        nbytes = kernel.granules(cores) * granule
        if math.isnan(nbytes):
            nbytes = instructions[name].hbm_bytes(instructions)
        is_lower_bound = is_lower_bound or kernel.is_lower_bound
        found.append(Cost(name, runs * kernel.cycles, runs * nbytes, is_lower_bound))
    return found


def _schedule_of(folder: pathlib.Path, instruction: str) -> Schedule:
    (path,) = (
        path
        for path in folder.glob(f"*-{instruction}-*-final_bundles.txt")
        if re.fullmatch(rf"\d+-{re.escape(instruction)}-\d+-final_bundles", path.stem)
    )
    return Schedule(path.read_text())


# The program --------------------------------------------------------------------------


class Instruction(NamedTuple):
    opcode: str
    shape: str
    operands: tuple[str, ...]

    def hbm_bytes(self, instructions: Mapping[str, Instruction]) -> float:
        shapes = [instructions[name].shape for name in self.operands]
        return sum(map(hbm_bytes, [self.shape, *shapes]))

    def bytes_of_async_copy(self, instructions: Mapping[str, Instruction]) -> float:
        """What `copy-start` moves, whose shape is (target, source, context)."""
        target = self.shape[1:].partition("}")[0] + "}"
        source = instructions[self.operands[0]].shape
        return hbm_bytes(target) + hbm_bytes(source)


_INSTRUCTION = re.compile(
    r"^ +(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)(?:,|$)", re.MULTILINE
)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}


def parse_hlo(text: str) -> dict[str, Instruction]:
    """The instructions of all computations of a program."""
    return {
        name: Instruction(opcode, shape, tuple(re.findall(r"%([\w.\-]+)", operands)))
        for name, shape, opcode, operands in _INSTRUCTION.findall(text)
    }


def hbm_bytes(shape: str) -> float:
    """The bytes of the arrays of an HLO shape that are in the main memory."""
    total = 0.0
    for dtype, sizes, order, layout in _ARRAY.findall(shape):
        if "S(" in layout:  # a memory on the chip
            continue
        dims = [int(size) for size in sizes.split(",") if size]
        dims = [dims[int(d)] for d in order.split(",") if d] or dims  # the minor first
        tile = re.search(r"T\(([\d,]+)\)", layout)
        tiles = [int(size) for size in tile[1].split(",")][::-1] if tile else []
        dims += [1] * (len(tiles) - len(dims))
        for d, size in enumerate(tiles):
            dims[d] = -(-dims[d] // size) * size
        bits = _BITS.get(dtype) or int(re.findall(r"\d+", f"{dtype} 0")[0])
        total += math.prod(dims) * bits / 8
    return total


# Schedules ----------------------------------------------------------------------------


class Call(NamedTuple):
    name: str
    runs: float
    is_lower_bound: bool


class _Branch(NamedTuple):
    """A branch over some bundles, or back to the first of them."""

    start: int
    end: int
    taken: Term

    def contains(self, other: _Branch) -> bool:
        return self.start <= other.start and other.end <= self.end


class _Region(NamedTuple):
    """How often some bundles run, relative to those around them.

    `means` has the means of terms over the trips of a loop, if they are known.
    """

    start: int
    end: int
    runs: float
    means: Mapping[Term, float] | None


_BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|0) +(?:[A-Z]{2})?: [> ]*\{", re.MULTILINE)
_BRANCH = re.compile(r"sbr\.rel (?:\((!?%p\w+)\) )?target = \$region(\d+)")
_COPY = re.compile(
    r"= dma\.(?:hbm_to_\w+|\w+_to_hbm|general) (?:\[[^]]*\] +)?(?:\((!?%p\w+)\), )?"
    r"[^;]*?/\*size_in_granules=\*/([^\s,]+)"
)
_CALL = re.compile(r"inlined_call [^/]*/\* %([\w.\-]+) = ")
_COMMENT = re.compile(r"/\*(?!size_in_granules).*?\*/", re.DOTALL)
_EVENT = re.compile(r"\b(Start/End empty|Start|End) region (\d+)\b")


class Schedule:
    """The bundles of a kernel, or of the program that calls the kernels."""

    def __init__(self, text: str) -> None:
        starts = [match.start() for match in _BUNDLE.finditer(text)]
        ends = [*starts[1:], len(text)]
        self._bundles = [text[a:b] for a, b in zip(starts, ends, strict=True)]
        self._code = [_COMMENT.sub("", bundle) for bundle in self._bundles]
        self._scalars = Scalars("\n".join(self._code))
        self._is_shared_among_cores = "/* core id */" in text

    @property
    def cycles(self) -> float:
        return sum(self._runs(index) for index in range(len(self._bundles)))

    def granules(self, cores: int) -> float:
        """What is copied from and to the main memory; NaN if that is not known."""
        total = 0.0
        for index, terms in enumerate(self._copies):
            total += sum(self._runs(index) * self._mean(index, term) for term in terms)
        return total * cores if self._is_shared_among_cores else total

    @property
    def is_lower_bound(self) -> bool:
        """Whether a loop runs as often as the data say."""
        return any(
            region.means is None and self._runs(region.start) > 0
            for region in self._regions
        )

    def calls(self) -> Iterator[Call]:
        """The instructions that are called, and how often."""
        for index, bundle in enumerate(self._bundles):
            is_known = all(region.means is not None for region in self._around(index))
            for name in _CALL.findall(bundle):
                yield Call(name, self._runs(index), not is_known)

    def _around(self, index: int) -> list[_Region]:
        """The regions that a bundle is in, outer ones first."""
        return [r for r in self._regions if r.start <= index <= r.end]

    def _runs(self, index: int) -> float:
        return math.prod(region.runs for region in self._around(index))

    def _mean(self, index: int, term: Term) -> float:
        """The mean of a term over the runs of a bundle."""
        for region in reversed(self._around(index)):
            if region.means and term in region.means:
                return region.means[term]
        value = self._scalars.product(term[-1:], {})
        return math.nan if value is None else value

    @functools.cached_property
    def _copies(self) -> list[list[Term]]:
        """For each bundle, whether and how much it copies."""
        return [
            [tuple(filter(None, copy)) for copy in _COPY.findall(code)]
            for code in self._code
        ]

    @functools.cached_property
    def _branches(self) -> tuple[list[_Branch], list[_Branch]]:
        """Those that close a loop, from the longest on, and those that skip bundles."""
        starts: dict[str, int] = {}
        ends: dict[str, int] = {}
        for index, bundle in enumerate(self._bundles):
            for event, region in _EVENT.findall(bundle):
                if event != "End":
                    starts[region] = index
                if event != "Start":
                    ends[region] = index
        loops, skips = [], []
        for index, code in enumerate(self._code):
            for predicate, region in _BRANCH.findall(code):
                target, taken = starts.get(region), (predicate,)
                if target is None:  # the end of a program is not always marked
                    continue
                if target > index:
                    skips.append(_Branch(index + 1, target - 1, taken))
                else:  # after the branch come its delay slots
                    end = max(index, ends.get(region, index))
                    loops.append(_Branch(target, end, taken))
        return sorted(loops, key=lambda loop: loop.start - loop.end), skips

    @functools.cached_property
    def _regions(self) -> list[_Region]:
        """The loops and what branches skip, outer ones first."""
        loops, skips = self._branches
        found: list[_Region] = []
        counters: dict[_Branch, Values] = {}
        for loop in loops:
            outer = {
                name: value
                for around, values in counters.items()
                if around.contains(loop)
                for name, value in values.items()
            }
            inner = [skip for skip in skips if _innermost(skip, loops) == loop]
            trips, means, counters[loop] = self._follow(loop, inner, outer)
            found.append(_Region(loop.start, loop.end, trips, means))
            for start, end, taken in inner:
                share = (means or {}).get(taken, 0)
                found.append(_Region(start, end, 1 - share, {}))
        return found

    def _follow(
        self, loop: _Branch, skips: Sequence[_Branch], outer: Values
    ) -> tuple[float, Mapping[Term, float] | None, Values]:
        """The trips of a loop, the means of terms, and the counters in the middle."""
        body = slice(loop.start, loop.end + 1)
        terms = {skip.taken for skip in skips if skip.taken[0]}
        terms.update(*self._copies[body])
        branches = [
            found for code in self._code[body] for found in _BRANCH.findall(code)
        ]
        used = {predicate.lstrip("!") for predicate, _ in branches if predicate}
        header = self._code[loop.start]
        return self._scalars.follow(header, loop.taken, terms, used, outer)


def _innermost(skip: _Branch, loops: Sequence[_Branch]) -> _Branch | None:
    """The shortest loop that a branch is in, which comes before what it skips."""
    around = (loop for loop in reversed(loops) if loop.contains(skip))
    return next((loop for loop in around if loop.start < skip.start), None)
