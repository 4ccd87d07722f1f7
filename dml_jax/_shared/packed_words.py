"""Words of 32 bits in MLIR, and what a thread of a Mosaic kernel does with them.

Written out, `a + b` is a line of MLIR; here it is `a + b`. Python's integers become
constants, and comparisons are signed.
"""

from __future__ import annotations

from jax.experimental.mosaic import gpu as mgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, scf

_GLOBAL = 1  # the address space of what a kernel is given


class Word:
    """32 bits, or one that a comparison gives."""

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Word(arith.addi(self.value, _value(other)))

    def __sub__(self, other):
        return Word(arith.subi(self.value, _value(other)))

    def __rsub__(self, other):
        return Word(arith.subi(_value(other), self.value))

    def __mul__(self, other):
        return Word(arith.muli(self.value, _value(other)))

    def __floordiv__(self, other):
        return Word(arith.divui(self.value, _value(other)))

    def __mod__(self, other):
        return Word(arith.remui(self.value, _value(other)))

    def __and__(self, other):
        return Word(arith.andi(self.value, _value(other)))

    def __rshift__(self, bits):
        return Word(arith.shrsi(self.value, _value(bits)))

    def __lt__(self, other):
        return Word(arith.cmpi(arith.CmpIPredicate.slt, self.value, _value(other)))

    def __gt__(self, other):
        return Word(arith.cmpi(arith.CmpIPredicate.sgt, self.value, _value(other)))


class Machine:
    """A thread that reads elements of `itemsize` bytes, and stores as many as 16."""

    def __init__(self, itemsize, size, source, *references):
        *lengths, target = references
        self.itemsize = itemsize
        self.elements = 16 // itemsize
        self.last = (size * itemsize - 1) // 16
        self.zero = Word(_value(0))
        self._source, self._target = map(_pointer, (source, target))
        if lengths:
            self._length_type = lengths[0].type.element_type
            self._lengths = _pointer(lengths[0])

    def positions(self, count):
        """Where the thread's chunks of elements begin, side by side with others'."""
        block = Word(arith.index_cast(_i32(), gpu.block_id(gpu.Dimension.x)))
        threads = Word(arith.index_cast(_i32(), gpu.block_dim(gpu.Dimension.x)))
        first = block * threads * count + Word(mgpu.thread_idx())
        return [(first + threads * k) * self.elements for k in range(count)]

    def length(self, row):
        itemsize = self._length_type.width // 8
        place = _at(self._lengths, row, itemsize)
        length = llvm.load(self._length_type, place, alignment=itemsize)
        return Word(length if itemsize == 4 else arith.extui(_i32(), length))

    def load(self, vector):
        """Four words."""
        value = llvm.load(_i32x4(), _at(self._source, vector, 16), alignment=16)
        return [Word(llvm.extractelement(value, _value(i))) for i in range(4)]

    def store(self, position, size, words):
        """Stores elements from `position` on, those below `size`."""

        def whole():
            vector = llvm.mlir_undef(_i32x4())
            for i, word in enumerate(words):
                vector = llvm.insertelement(vector, word.value, _value(i))
            target = _at(self._target, position, self.itemsize)
            llvm.store(vector, target, alignment=16)

        def one_by_one():
            element = ir.IntegerType.get_signless(8 * self.itemsize)
            per_word = 4 // self.itemsize
            for k in range(self.elements):
                word = words[k // per_word].value
                bits = _value(8 * self.itemsize * (k % per_word))
                value = arith.shrui(word, bits)
                if self.itemsize < 4:
                    value = arith.trunci(element, value)
                target = _at(self._target, position + k, self.itemsize)

                def store(value=value, target=target):
                    llvm.store(value, target, alignment=self.itemsize)

                _if(position + k < size, store)

        _if(position < size - self.elements + 1, whole, one_by_one)

    @staticmethod
    def least(a, b):
        return Word(arith.minsi(_value(a), _value(b)))

    @staticmethod
    def most(a, b):
        return Word(arith.maxsi(_value(a), _value(b)))

    @staticmethod
    def select(condition, a, b):
        return Word(arith.select(condition.value, _value(a), _value(b)))

    @staticmethod
    def where(condition, words, otherwise):
        """The words that a function gives, if the condition holds."""
        results = [_i32()] * len(otherwise)
        branch = scf.IfOp(condition.value, results, has_else=True)
        bodies = words, lambda: otherwise
        for region, body in zip(branch.regions, bodies, strict=True):
            with ir.InsertionPoint(region.blocks[0]):
                scf.yield_([word.value for word in body()])
        return [Word(result) for result in branch.results]

    @staticmethod
    def funnel(low, high, bits):
        """The word that begins at a bit of the one and ends in the other."""
        return Word(llvm.intr_fshr(high.value, low.value, _value(bits)))

    @staticmethod
    def permute(low, high, digits):
        """A word of bytes of the two, counted from the first of `low` on."""
        if digits == [4, 5, 6, 7]:
            return high
        selector = _value(sum(digit << 4 * i for i, digit in enumerate(digits)))
        operands = [low.value, high.value, selector]
        return Word(llvm.call_intrinsic(_i32(), "llvm.nvvm.prmt", operands, [], []))

    def blend(self, before, after, count):
        """The first `count` bytes of the one, 0 to 4, and the others of the other."""
        ones = arith.shli(_value(1), (count * 8).value)
        kept = self.select(count < 4, Word(ones) - 1, -1).value
        lost = arith.xori(kept, _value(-1))
        both = arith.andi(before.value, kept), arith.andi(after.value, lost)
        return Word(arith.ori(*both))


def _value(word):
    return arith.constant(_i32(), word) if isinstance(word, int) else word.value


def _i32():
    return ir.IntegerType.get_signless(32)


def _i32x4():
    return ir.VectorType.get((4,), _i32())


def _pointer(reference):
    pointer = mgpu.utils.memref_ptr(reference)
    return llvm.addrspacecast(llvm.PointerType.get(_GLOBAL), pointer)


def _at(pointer, index, itemsize):
    """Where the index-th of objects of a size is; the index is not negative."""
    i64 = ir.IntegerType.get_signless(64)
    offset = arith.muli(arith.extui(i64, _value(index)), arith.constant(i64, itemsize))
    byte = ir.IntegerType.get_signless(8)
    return mgpu.utils.getelementptr(pointer, [offset], byte)


def _if(condition, do, otherwise=lambda: None):
    branch = scf.IfOp(condition.value, has_else=True)
    for region, body in zip(branch.regions, (do, otherwise), strict=True):
        with ir.InsertionPoint(region.blocks[0]):
            body()
            scf.yield_([])
