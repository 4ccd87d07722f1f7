"""What a thread of a GPU kernel can do, as MLIR on words of 32 bits.

`chunk_kernel` uses `ChunkMachine`, and `shared_memory_kernel` uses `StripMachine`.

The operators of `Word`, such as `a + b`, emit MLIR. Python integers become constants.
Sums and products wrap. Comparisons, shifts, minima and maxima are signed, and divisions
are unsigned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, scf

_GLOBAL, _SHARED = 1, 3  # address spaces of LLVM


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


class Float64:
    """A float of 64 bits."""

    def __init__(self, value: Any):
        self.value = value

    def __add__(self, other: float) -> Float64:
        return Float64(arith.addf(self.value, arith.constant(_f64(), other)))

    def __sub__(self, other: Float64) -> Float64:
        return Float64(arith.subf(self.value, other.value))


class _Machine:
    """What the threads of all kernels can do."""

    _lengths: Any

    def load_length(self, index: Word) -> Word:
        itemsize = self._lengths.type.element_type.width // 8
        address = _address(_pointer(self._lengths), index, itemsize)
        integer = ir.IntegerType.get_signless(8 * itemsize)
        length = llvm.load(integer, address, alignment=itemsize)
        return Word(length if itemsize == 4 else arith.extui(_i32(), length))

    @staticmethod
    def minimum(a: WordLike, b: WordLike) -> Word:
        return Word(arith.minsi(_value(a), _value(b)))

    @staticmethod
    def maximum(a: WordLike, b: WordLike) -> Word:
        return Word(arith.maxsi(_value(a), _value(b)))

    @staticmethod
    def select(condition: Word, a: WordLike, b: WordLike) -> Word:
        return Word(arith.select(condition.value, _value(a), _value(b)))


class ChunkMachine(_Machine):
    """A thread that stores elements of `itemsize` bytes, 16 bytes at once.

    It loads elements of the same size from the source, or scalars of 64 bits.
    """

    def __init__(self, itemsize: int, source_bytes: int, source: Any, *references: Any):
        *lengths, target = references
        self._lengths = lengths[0] if lengths else None
        self.itemsize = itemsize
        self.per_chunk = 16 // itemsize
        self.last_vector = (source_bytes - 1) // 16
        self.zero = Word(_value(0))
        self._source, self._target = map(_pointer, (source, target))

    def positions(self, count: int) -> list[Word]:
        """The first position of each chunk of this thread.

        Consecutive threads have consecutive chunks.
        """
        block = Word(arith.index_cast(_i32(), gpu.block_id(gpu.Dimension.x)))
        threads = Word(arith.index_cast(_i32(), gpu.block_dim(gpu.Dimension.x)))
        first = block * threads * count + Word(mgpu.thread_idx())
        return [(first + threads * k) * self.per_chunk for k in range(count)]

    def load_vector(self, index: Word) -> list[Word]:
        """The four words of 16 aligned bytes."""
        value = llvm.load(_i32x4(), _address(self._source, index, 16), alignment=16)
        return [Word(llvm.extractelement(value, _value(i))) for i in range(4)]

    def load_scalar(self, index: int) -> Word:
        """The low word of a scalar."""
        return Word(llvm.load(_i32(), _address(self._source, index, 8), alignment=8))

    def load_float64(self, index: int) -> Float64:
        return Float64(llvm.load(_f64(), _address(self._source, index, 8), alignment=8))

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
    def permute_bytes(low: Word, high: Word, selector: WordLike) -> Word:
        """Four of eight bytes, of which those of `low` have numbers 0 to 3.

        Each hexadecimal digit of the selector, from the last one on, selects a byte.
        """
        operands = [low.value, high.value, _value(selector)]
        return Word(llvm.call_intrinsic(_i32(), "llvm.nvvm.prmt", operands, [], []))

    @staticmethod
    def blend_bits(before: Word, after: Word, count: Word) -> Word:
        """The low `count` bits, 0 to 32, of `before`, and the others of `after`."""
        # A shift of 32 bits by 32 is undefined.
        ones = arith.constant(_i64(), 2**32 - 1)
        shifted = arith.shli(ones, arith.extui(_i64(), count.value))
        is_after = arith.trunci(_i32(), shifted)
        is_before = arith.xori(is_after, _value(-1))
        pair = arith.andi(before.value, is_before), arith.andi(after.value, is_after)
        return Word(arith.ori(*pair))

    @staticmethod
    def to_float64(word: Word) -> Float64:
        return Float64(arith.uitofp(_f64(), word.value))

    @staticmethod
    def multiply_add(x: Float64, y: Float64, z: Float64) -> Float64:
        return Float64(llvm.intr_fma(x.value, y.value, z.value))

    @staticmethod
    def round(x: Float64, dtype: np.dtype) -> Word:
        """The bits of the nearest float of a dtype."""
        kinds = {
            "float16": ir.F16Type,
            "bfloat16": ir.BF16Type,
            "float32": ir.F32Type,
        }
        bits = ir.IntegerType.get_signless(8 * dtype.itemsize)
        code = arith.bitcast(bits, arith.truncf(kinds[dtype.name].get(), x.value))
        return Word(code if dtype.itemsize == 4 else arith.extui(_i32(), code))


class StripMachine(_Machine):
    """A thread that moves elements of `itemsize` bytes by way of shared memory.

    An array may have more elements than 32 bits can count, so offsets in it have 64.
    """

    def __init__(self, itemsize: int, *references: Any):
        source, self._lengths, target, shared, shared_lengths = references
        self.itemsize = itemsize
        self.thread = Word(mgpu.thread_idx())
        self.block = Word(arith.index_cast(_i32(), gpu.block_id(gpu.Dimension.x)))
        self.zero = Word(_value(0))
        self._element = ir.IntegerType.get_signless(8 * itemsize)
        self._source, self._target = map(_pointer, (source, target))
        self._shared = Word(llvm.ptrtoint(_i32(), mgpu.utils.memref_ptr(shared)))
        self._shared_lengths = mgpu.utils.memref_ptr(shared_lengths)

    def offset(self, begin: Any, count: Word, stride: int) -> Any:
        """The offset in an array that is `count * stride` elements after `begin`."""
        if isinstance(begin, Word):
            begin = arith.extsi(_i64(), begin.value)
        distance = arith.muli(
            arith.extsi(_i64(), count.value), arith.constant(_i64(), stride)
        )
        return arith.addi(begin, distance)

    def load_word(self, at: Any, count: int) -> Any:
        """The aligned word of `count` elements that contains the element at `at`.

        The last word may end beyond the array, but not beyond XLA's buffer, whose size
        is a multiple of a word.
        """
        size = count * self.itemsize
        offset = arith.muli(at, arith.constant(_i64(), self.itemsize))
        if count > 1:
            offset = arith.andi(offset, arith.constant(_i64(), -size))
        address = _pointer_at(self._source, offset)
        return llvm.load(ir.IntegerType.get_signless(8 * size), address, alignment=size)

    def join_words(self, low: Any, high: Any, at: Any) -> Any:
        """The elements from `at` on; the words contain the first and the last one."""
        bits = arith.muli(arith.trunci(_i32(), at), _value(8 * self.itemsize))
        return llvm.intr_fshr(high, low, bits)  # by `bits` modulo 32

    def store(self, at: Any, elements: list[Any], is_stored: list[Word] | None) -> None:
        """Stores consecutive elements, or those of them for which `is_stored` holds.

        These are consecutive, too. If they are all, they are stored as one value.
        """
        size = len(elements) * self.itemsize
        offset = arith.muli(at, arith.constant(_i64(), self.itemsize))
        address = _pointer_at(self._target, offset)

        def store_value() -> list[Word]:
            if len(elements) == 1:
                (value,) = elements
            else:
                vector = ir.VectorType.get((len(elements),), self._element)
                value = llvm.mlir_undef(vector)
                for i, element in enumerate(elements):
                    value = llvm.insertelement(value, element, _value(i))
            llvm.store(value, address, alignment=size)
            return []

        if is_stored is None:
            store_value()
            return

        def store_element(i: int) -> list[Word]:
            offset = arith.constant(_i64(), i * self.itemsize)
            target = _pointer_at(address, offset)
            llvm.store(elements[i], target, alignment=self.itemsize)
            return []

        def store_elements() -> list[Word]:
            for i, condition in enumerate(is_stored):
                _if(condition, functools.partial(store_element, i))
            return []

        if len(elements) == 1:
            store_elements()
        else:
            _if(is_stored[0] & is_stored[-1], store_value, store_elements)

    def copy_to_shared(self, address: Word, at: Any) -> None:
        """Begins to copy the 16 aligned bytes from the element at `at` on."""
        offset = arith.muli(at, arith.constant(_i64(), self.itemsize))
        source = _pointer_at(self._source, offset)
        target = self._shared_pointer(address, 0)
        name = "llvm.nvvm.cp.async.cg.shared.global.16"
        llvm.call_intrinsic(None, name, [target, source], [], [])

    def shared_address(self, offset: Word) -> Word:
        """The address of an element in shared memory."""
        return self._shared + offset * self.itemsize

    def store_shared(self, address: Word, value: Any, count: int) -> None:
        """Stores a word of `count` elements in shared memory."""
        pointer = self._shared_pointer(address, 0)
        llvm.store(value, pointer, alignment=count * self.itemsize)

    def load_shared(self, address: Word, index: int) -> Any:
        """The element that is `index` elements after an address in shared memory.

        The address itself may lie before the first element. CUDA reserves the bytes
        there.
        """
        pointer = self._shared_pointer(address, index)
        return llvm.load(self._element, pointer, alignment=self.itemsize)

    def _shared_pointer(self, address: Word, index: int) -> Any:
        # The instruction that loads adds the constant.
        pointer = llvm.inttoptr(
            llvm.PointerType.get(_SHARED), arith.extui(_i64(), address.value)
        )
        return _pointer_at(pointer, arith.constant(_i64(), index * self.itemsize))

    def store_shared_length(self, offset: Word, length: Word) -> None:
        address = _address(self._shared_lengths, offset, 4)
        llvm.store(length.value, address, alignment=4)

    def load_shared_length(self, offset: Word) -> Word:
        address = _address(self._shared_lengths, offset, 4)
        return Word(llvm.load(_i32(), address, alignment=4))

    def wait(self) -> None:
        """Waits for the copies to shared memory, and for the threads of the block."""
        llvm.call_intrinsic(None, "llvm.nvvm.cp.async.wait.all", [], [], [])
        gpu.barrier()

    @staticmethod
    def is_between(low: WordLike, word: Word, high: WordLike) -> Word:
        return (word > low - 1) & (word < high)

    def for_rows(
        self,
        first: Word,
        end: WordLike,
        step: int,
        unroll: int,
        move: Callable[[list[Word]], None],
    ) -> None:
        """Calls `move` with the rows first, first + step, ..., `unroll` at a time.

        In the last call, rows from `end` on are replaced by the first one of the call.
        """
        stop = end - step * (unroll - 1)
        loop = scf.ForOp(
            first.value, _value(stop), _value(step * unroll), [first.value]
        )
        with ir.InsertionPoint(loop.body):
            row = Word(loop.induction_variable)
            move([row + step * k for k in range(unroll)])
            scf.yield_([(row + step * unroll).value])
        row = Word(loop.results[0])

        def move_rest() -> list[Word]:
            later = (row + step * k for k in range(1, unroll))
            move([row, *(self.select(k < end, k, row) for k in later)])
            return []

        if unroll > 1:
            _if(row < end, move_rest)


def _value(word: WordLike) -> Any:
    return arith.constant(_i32(), word) if isinstance(word, int) else word.value


def _i32() -> Any:
    return ir.IntegerType.get_signless(32)


def _i64() -> Any:
    return ir.IntegerType.get_signless(64)


def _f64() -> Any:
    return ir.F64Type.get()


def _i32x4() -> Any:
    return ir.VectorType.get((4,), _i32())


def _pointer(reference: Any) -> Any:
    pointer = mgpu.utils.memref_ptr(reference)
    return llvm.addrspacecast(llvm.PointerType.get(_GLOBAL), pointer)


def _address(pointer: Any, index: WordLike, itemsize: int) -> Any:
    """The address of an element of `itemsize` bytes; its index is not negative."""
    offset = arith.extui(_i64(), _value(index))
    offset = arith.muli(offset, arith.constant(_i64(), itemsize))
    return _pointer_at(pointer, offset)


def _pointer_at(pointer: Any, offset: Any) -> Any:
    """The pointer that is some bytes after another one."""
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
