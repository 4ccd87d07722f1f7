"""What a thread of `strip_kernel` can do, as MLIR on integers of 32 bits.

The operators of `I32`, such as `a + b`, emit MLIR. Python integers become constants.
Sums and products wrap. Comparisons, minima and maxima are signed, and divisions are
unsigned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from jax.experimental.mosaic import gpu as mgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, scf

_GLOBAL, _SHARED = 1, 3  # address spaces of LLVM


def _emits(operation: Callable[..., Any]) -> Callable[[I32, I32Like], I32]:
    def method(self: I32, other: I32Like) -> I32:
        return I32(operation(self.value, _value(other)))

    return method


class I32:
    """An integer of 32 bits, or of one bit from a comparison."""

    def __init__(self, value: Any):
        self.value = value

    def __rsub__(self, other: I32Like) -> I32:
        return I32(arith.subi(_value(other), self.value))

    __add__ = _emits(arith.addi)
    __sub__ = _emits(arith.subi)
    __mul__ = _emits(arith.muli)
    __floordiv__ = _emits(arith.divui)
    __mod__ = _emits(arith.remui)
    __and__ = _emits(arith.andi)
    __lt__ = _emits(functools.partial(arith.cmpi, arith.CmpIPredicate.slt))
    __gt__ = _emits(functools.partial(arith.cmpi, arith.CmpIPredicate.sgt))


I32Like: TypeAlias = I32 | int


class ThreadBuilder:
    """A thread that moves elements of `itemsize` bytes by way of shared memory.

    An array may have more elements than 32 bits can count, so offsets in it have 64.
    """

    def __init__(self, itemsize: int, *references: Any):
        source, lengths, target, shared = map(mgpu.utils.memref_ptr, references)
        self.itemsize = itemsize
        self.thread = I32(mgpu.thread_idx())
        self.block = I32(arith.index_cast(_i32(), gpu.block_id(gpu.Dimension.x)))
        self._element = ir.IntegerType.get_signless(8 * itemsize)
        self._source, self._lengths, self._target = (
            llvm.addrspacecast(llvm.PointerType.get(_GLOBAL), pointer)
            for pointer in (source, lengths, target)
        )
        self._shared = I32(llvm.ptrtoint(_i32(), shared))

    minimum = staticmethod(_emits(arith.minsi))
    maximum = staticmethod(_emits(arith.maxsi))

    @staticmethod
    def select(condition: I32, a: I32Like, b: I32Like) -> I32:
        return I32(arith.select(condition.value, _value(a), _value(b)))

    def offset(self, begin: Any, count: I32, stride: int) -> Any:
        """The offset in an array that is `count * stride` elements after `begin`."""
        if isinstance(begin, I32):
            begin = arith.extsi(_i64(), begin.value)
        return arith.addi(begin, _times(arith.extsi(_i64(), count.value), stride))

    def load_length(self, index: I32) -> I32:
        offset = _times(arith.extui(_i64(), index.value), 4)
        return I32(llvm.load(_i32(), _at(self._lengths, offset), alignment=4))

    def load_word(self, at: Any, count: int) -> Any:
        """The aligned word of `count` elements that contains the element at `at`.

        The last word may end beyond the array, but not beyond XLA's buffer, whose size
        is a multiple of a word.
        """
        size = count * self.itemsize
        offset = _times(at, self.itemsize)
        offset = arith.andi(offset, arith.constant(_i64(), -size))
        word = ir.IntegerType.get_signless(8 * size)
        return llvm.load(word, _at(self._source, offset), alignment=size)

    def join_words(self, low: Any, high: Any, at: Any) -> Any:
        """The elements from `at` on; the words contain the first and the last one."""
        bits = arith.muli(arith.trunci(_i32(), at), _value(8 * self.itemsize))
        return llvm.intr_fshr(high, low, bits)  # by `bits` modulo 32

    def store(self, at: Any, word: list[Any], are_stored: list[I32] | None) -> None:
        """Stores a word, or only its elements for which `are_stored` holds.

        These are consecutive.
        """
        address = _at(self._target, _times(at, self.itemsize))

        def store_word() -> None:
            value = word[0]
            if len(word) > 1:
                value = llvm.mlir_undef(ir.VectorType.get((len(word),), self._element))
                for i, element in enumerate(word):
                    value = llvm.insertelement(value, element, _value(i))
            llvm.store(value, address, alignment=len(word) * self.itemsize)

        def store_element(i: int) -> None:
            target = _at(address, arith.constant(_i64(), i * self.itemsize))
            llvm.store(word[i], target, alignment=self.itemsize)

        def store_elements() -> None:
            for i, condition in enumerate(are_stored or ()):
                _if(condition, functools.partial(store_element, i))

        if are_stored is None:
            store_word()
        else:
            _if(are_stored[0] & are_stored[-1], store_word, store_elements)

    def shared_address(self, offset: I32) -> I32:
        """The address of an element in shared memory."""
        return self._shared + offset * self.itemsize

    def copy_to_shared(self, address: I32, at: Any, count: int) -> None:
        """Begins to copy the `count` aligned elements from `at` on."""
        size = count * self.itemsize
        source = _at(self._source, _times(at, self.itemsize))
        target = self._shared_pointer(address, 0)
        name = f"llvm.nvvm.cp.async.ca.shared.global.{size}"
        llvm.call_intrinsic(None, name, [target, source], [], [])

    def store_shared(self, address: I32, word: Any, count: int) -> None:
        """Stores a word of `count` elements in shared memory."""
        pointer = self._shared_pointer(address, 0)
        llvm.store(word, pointer, alignment=count * self.itemsize)

    def load_shared(self, address: I32, index: int) -> Any:
        """The element that is `index` elements after an address in shared memory."""
        pointer = self._shared_pointer(address, index)
        return llvm.load(self._element, pointer, alignment=self.itemsize)

    def _shared_pointer(self, address: I32, index: int) -> Any:
        # The instruction that loads adds the constant.
        pointer = llvm.inttoptr(
            llvm.PointerType.get(_SHARED), arith.extui(_i64(), address.value)
        )
        return _at(pointer, arith.constant(_i64(), index * self.itemsize))

    def wait(self) -> None:
        """Waits for the copies to shared memory, and for the threads of the block."""
        llvm.call_intrinsic(None, "llvm.nvvm.cp.async.wait.all", [], [], [])
        gpu.barrier()

    def for_rows(
        self,
        first: I32,
        end: int,
        step: int,
        unroll: int,
        move: Callable[[list[I32]], None],
    ) -> None:
        """Calls `move` with the rows first, first + step, ..., `unroll` at a time.

        In the last call, rows from `end` on are replaced by the first one of the call.
        """
        loop = scf.ForOp(first.value, _value(end), _value(step * unroll), [])
        with ir.InsertionPoint(loop.body):
            row = I32(loop.induction_variable)
            later = (row + step * k for k in range(1, unroll))
            move([row, *(self.select(k < end, k, row) for k in later)])
            scf.yield_([])


def _value(number: I32Like) -> Any:
    return arith.constant(_i32(), number) if isinstance(number, int) else number.value


def _i32() -> Any:
    return ir.IntegerType.get_signless(32)


def _i64() -> Any:
    return ir.IntegerType.get_signless(64)


def _times(number: Any, factor: int) -> Any:
    """The product of integers of 64 bits."""
    return arith.muli(number, arith.constant(_i64(), factor))


def _at(pointer: Any, offset: Any) -> Any:
    """The pointer that is some bytes after another one."""
    byte = ir.IntegerType.get_signless(8)
    return mgpu.utils.getelementptr(pointer, [offset], byte)


def _if(
    condition: I32, then: Callable[[], Any], otherwise: Callable[[], Any] = list
) -> None:
    branch = scf.IfOp(condition.value, [], has_else=True)
    for region, body in zip(branch.regions, (then, otherwise), strict=True):
        with ir.InsertionPoint(region.blocks[0]):
            body()
            scf.yield_([])
