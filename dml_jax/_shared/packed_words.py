"""The machine of `packed_copy_kernel` on a GPU: words of 32 bits as MLIR values.

The operators of `Word`, such as `a + b`, emit MLIR. Python integers become constants.
Comparisons and shifts are signed, and divisions are unsigned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from jax.experimental.mosaic import gpu as mgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, scf

_GLOBAL = 1  # the address space of the operands


def _emits(operation: Callable[..., Any]) -> Callable[[Word, WordLike], Word]:
    def method(self: Word, other: WordLike) -> Word:
        return Word(operation(self.value, _value(other)))

    return method


class Word:
    """A value of 32 bits, or of one bit from a comparison."""

    def __init__(self, value: Any):
        self.value = value

    def __rsub__(self, other: WordLike) -> Word:
        return Word(arith.subi(_value(other), self.value))

    __add__ = _emits(arith.addi)
    __sub__ = _emits(arith.subi)
    __mul__ = _emits(arith.muli)
    __floordiv__ = _emits(arith.divui)
    __mod__ = _emits(arith.remui)
    __and__ = _emits(arith.andi)
    __rshift__ = _emits(arith.shrsi)
    __lt__ = _emits(functools.partial(arith.cmpi, arith.CmpIPredicate.slt))
    __gt__ = _emits(functools.partial(arith.cmpi, arith.CmpIPredicate.sgt))


WordLike: TypeAlias = Word | int


class Machine:
    """A thread that loads elements of `itemsize` bytes and stores 16 bytes at once."""

    def __init__(self, itemsize: int, size: int, source: Any, *references: Any):
        *lengths, target = references
        self.itemsize = itemsize
        self.per_chunk = 16 // itemsize
        self.last_vector = (size * itemsize - 1) // 16
        self.zero = Word(_value(0))
        self._source, self._target = map(_pointer, (source, target))
        if lengths:
            self._length_type = lengths[0].type.element_type
            self._lengths = _pointer(lengths[0])

    def positions(self, count: int) -> list[Word]:
        """The first position of each chunk of this thread.

        Consecutive threads have consecutive chunks.
        """
        block = Word(arith.index_cast(_i32(), gpu.block_id(gpu.Dimension.x)))
        threads = Word(arith.index_cast(_i32(), gpu.block_dim(gpu.Dimension.x)))
        first = block * threads * count + Word(mgpu.thread_idx())
        return [(first + threads * k) * self.per_chunk for k in range(count)]

    def load_length(self, row: Word) -> Word:
        itemsize = self._length_type.width // 8
        address = _address(self._lengths, row, itemsize)
        length = llvm.load(self._length_type, address, alignment=itemsize)
        return Word(length if itemsize == 4 else arith.extui(_i32(), length))

    def load_vector(self, index: Word) -> list[Word]:
        """The four words of 16 aligned bytes."""
        value = llvm.load(_i32x4(), _address(self._source, index, 16), alignment=16)
        return [Word(llvm.extractelement(value, _value(i))) for i in range(4)]

    def store(self, position: Word, size: int, words: list[Word]) -> None:
        """Stores the elements from `position` on, up to position `size`."""

        def store_vector() -> list[Word]:
            vector = llvm.mlir_undef(_i32x4())
            for i, word in enumerate(words):
                vector = llvm.insertelement(vector, word.value, _value(i))
            target = _address(self._target, position, self.itemsize)
            llvm.store(vector, target, alignment=16)
            return []

        def store_elements() -> list[Word]:
            for k in range(self.per_chunk):
                self._store_element(position + k, size, words, k)
            return []

        _if(position < size - self.per_chunk + 1, store_vector, store_elements)

    def _store_element(self, position: Word, size: int, words: list[Word], k: int):
        """Stores the k-th element of the words, if its position is below `size`."""
        element = ir.IntegerType.get_signless(8 * self.itemsize)
        word, index = divmod(k, 4 // self.itemsize)
        value = arith.shrui(words[word].value, _value(8 * self.itemsize * index))
        if self.itemsize < 4:
            value = arith.trunci(element, value)
        target = _address(self._target, position, self.itemsize)

        def store() -> list[Word]:
            llvm.store(value, target, alignment=self.itemsize)
            return []

        _if(position < size, store)

    @staticmethod
    def minimum(a: WordLike, b: WordLike) -> Word:
        return Word(arith.minsi(_value(a), _value(b)))

    @staticmethod
    def maximum(a: WordLike, b: WordLike) -> Word:
        return Word(arith.maxsi(_value(a), _value(b)))

    @staticmethod
    def select(condition: Word, a: WordLike, b: WordLike) -> Word:
        return Word(arith.select(condition.value, _value(a), _value(b)))

    @staticmethod
    def cond(
        condition: Word, words: Callable[[], list[Word]], otherwise: list[Word]
    ) -> list[Word]:
        """`words()`, computed only if the condition holds, else `otherwise`."""
        return _if(condition, words, lambda: otherwise, len(otherwise))

    @staticmethod
    def funnel_shift(low: Word, high: Word, bits: WordLike) -> Word:
        """The low word of the pair, which is shifted right by `bits`."""
        return Word(llvm.intr_fshr(high.value, low.value, _value(bits)))

    @staticmethod
    def permute_bytes(low: Word, high: Word, selector: list[int]) -> Word:
        """The selected four of eight bytes; those of `low` have numbers 0 to 3."""
        if selector == [4, 5, 6, 7]:
            return high
        nibbles = _value(sum(byte << 4 * i for i, byte in enumerate(selector)))
        operands = [low.value, high.value, nibbles]
        return Word(llvm.call_intrinsic(_i32(), "llvm.nvvm.prmt", operands, [], []))

    def blend_bytes(self, before: Word, after: Word, count: Word) -> Word:
        """The first `count` bytes, 0 to 4, of `before`, and the others of `after`."""
        ones = arith.shli(_value(1), (count * 8).value)
        kept = self.select(count < 4, Word(ones) - 1, -1).value
        lost = arith.xori(kept, _value(-1))
        pair = arith.andi(before.value, kept), arith.andi(after.value, lost)
        return Word(arith.ori(*pair))


def _value(word: WordLike) -> Any:
    return arith.constant(_i32(), word) if isinstance(word, int) else word.value


def _i32() -> Any:
    return ir.IntegerType.get_signless(32)


def _i32x4() -> Any:
    return ir.VectorType.get((4,), _i32())


def _pointer(reference: Any) -> Any:
    pointer = mgpu.utils.memref_ptr(reference)
    return llvm.addrspacecast(llvm.PointerType.get(_GLOBAL), pointer)


def _address(pointer: Any, index: WordLike, itemsize: int) -> Any:
    """The address of an element of `itemsize` bytes; its index is not negative."""
    i64 = ir.IntegerType.get_signless(64)
    offset = arith.muli(arith.extui(i64, _value(index)), arith.constant(i64, itemsize))
    byte = ir.IntegerType.get_signless(8)
    return mgpu.utils.getelementptr(pointer, [offset], byte)


def _if(
    condition: Word,
    then: Callable[[], list[Word]],
    otherwise: Callable[[], list[Word]] = list,
    count: int = 0,
) -> list[Word]:
    """The `count` words that one of two functions returns, as a branch."""
    branch = scf.IfOp(condition.value, [_i32()] * count, has_else=True)
    for region, body in zip(branch.regions, (then, otherwise), strict=True):
        with ir.InsertionPoint(region.blocks[0]):
            scf.yield_([word.value for word in body()])
    return [Word(result) for result in branch.results]
