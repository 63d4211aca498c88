"""The memory that a run of a graph takes in onnxruntime's CPU provider, at known sizes.

The model follows onnxruntime 1.32, which plans a sequential run with default options as follows:

- Bindings run depth-first from the graph's sinks, the last of them first.
- If the operator works in place, a result takes over the buffer of an operand that ends there.
- Otherwise it takes a free buffer of a value of equal shape. That buffer is kept until the last
  value in it ends, even while it is idle. In a network with values of many shapes, such as a U-Net,
  the buffers hold more than the values do. Values whose size is hidden (`views`) do neither.
- All other buffers come from an arena, which grows by regions of doubling size, and splits and
  joins chunks of them. A page counts once it was written.
- Transposed convolutions unfold one image at a time. Convolutions copy their images into and out of
  a special layout. Where copies the elements of each branch.

onnxruntime also replaces nodes, and copies values into the layout of its convolutions. This is not
modelled; margins and `KERNELS` allow for it (scripts/results/checkpoint.md).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnxgrad.grad.checkpointing.costs import size_of
from onnxgrad.grad.checkpointing.views import hidden_in
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import is_static, numpy_dtype
from onnxgrad.ir.var import Var

MARGIN, MARGIN_OF_CONVOLUTIONS = 1.08, 1.2  # factors for the planned bytes
KERNELS = 9 << 20  # bytes: packed operands and other scratch of kernels

# operators whose result shares the memory of the first operand
_VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
_IN_PLACE = frozenset((
    "Abs", "Add", "Cast", "Clip", "Div", "Erf", "Exp", "Log", "Mul", "Neg", "Pow", "Reciprocal",
    "Relu", "Sigmoid", "Softmax", "Sqrt", "Sub", "Sum", "Tanh", "Where",
))  # fmt: skip
# operators that pass on the special layout of convolutions, which has blocks of channels
_BLOCKED = frozenset(("Add", "AveragePool", "Concat", "Conv", "MaxPool", "Relu"))
_BLOCK = 8
_ROUNDED = 256  # bytes: the sizes of chunks are multiples
_PAGE = 1024  # bytes; the system's pages are larger, which matters only for small graphs
_FIRST, _LARGEST = 1 << 20, 1 << 30  # bytes of the first and the largest region
_WASTED = 1 << 27  # bytes at the end of a chunk that is not split


def peak_of(block: BindingBlock) -> int:
    """Returns the bytes that a run takes in addition to inputs and weights. Results count."""
    arena, chunks = _Arena(), dict[int, _Chunk]()
    for step in _Plan(block).steps():
        scratch = [arena.take(size) for size in step.scratch]
        for number, size in step.begin:
            chunks[number] = arena.take(size)
        for chunk in scratch:
            arena.give(chunk)
        for number in step.end:
            arena.give(chunks.pop(number))
    written = arena.touched * _PAGE
    margin = MARGIN_OF_CONVOLUTIONS if any(b.is_op("Conv") for b in block.bindings) else MARGIN
    return int(margin * written) + min(KERNELS, written // 8)


# ---- which buffer each value has, and when ------------------------------------------------------


@dataclass
class _Step:
    """The buffers that begin before a binding runs, with their sizes, and end after it."""

    begin: list[tuple[int, int]] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    scratch: Sequence[int] = ()


class _Plan:
    """The buffers of a block's values."""

    def __init__(self, block: BindingBlock) -> None:
        self._constants = {v for v in block.vars() if v.is_constant}
        self._order = [b for b in _in_order(block) if not self._folded(b)]
        self._results = set(block.outputs)
        self._reads: dict[Var, int] = {}
        for b in self._order:
            for v, count in _operands(b).items():
                self._reads[v] = self._reads.get(v, 0) + count
        self._buffers: dict[Var, int | None] = dict.fromkeys(block.inputs)
        self._sizes: list[int] = []
        self._left: list[int] = []  # reads of each buffer
        self._last: list[int] = []  # the step of each buffer's last read
        self._shapes: list[object] = []  # of each buffer; values of equal shapes may share it
        self._idle: list[int] = []
        self._hidden = hidden_in(self._order)

    def _folded(self, b: Binding) -> bool:
        """Whether onnxruntime computes the binding while it loads the model."""
        if b.op == "Constant":
            return True
        found = not b.blocks and not draws(b) and all(v in self._constants for v in b.reads())
        if found:
            self._constants.update(v for v in b.outputs if v is not None)
        return found

    def steps(self) -> list[_Step]:
        """Returns the steps in the order of a run."""
        steps = []
        for i, b in enumerate(self._order):
            step = _Step(scratch=_scratch(b))
            for v in b.outputs:
                if v is not None and (number := self._place(v, b)) is not None:
                    step.begin.append((number, self._sizes[number]))
            for v, count in _operands(b).items():
                self._read(v, count, i)
            for v in b.outputs:
                if v is not None:
                    self._read(v, 0, i)
            steps.append(step)
        kept = {self._buffers.get(v) for v in self._results}
        for number, last in enumerate(self._last):
            if number not in kept:
                steps[last].end.append(number)
        return steps

    def _place(self, v: Var, b: Binding) -> int | None:
        """Chooses the buffer of a result; returns its number if it is new."""
        reads, first = self._reads.get(v, 0), b.operand(0)
        if b.op in _VIEWS and not b.domain and first is not None:
            number = self._buffers.get(first)
            self._buffers[v] = number
            if number is not None:
                self._left[number] += reads
            return None
        taken = None if v in self._results else self._taken(v, b)
        if taken is not None:
            self._buffers[v] = taken
            self._left[taken] += reads
            return None
        self._buffers[v] = number = len(self._sizes)
        self._sizes.append(size_of(v))
        self._shapes.append(_shape(v))
        self._left.append(reads)
        self._last.append(0)
        return number

    def _taken(self, v: Var, b: Binding) -> int | None:
        """Returns the buffer of an operand that ends here, or one that is idle."""
        if not is_static(v.shape) or v in self._hidden:
            return None
        for w in b.inputs if b.op in _IN_PLACE and not b.domain else ():
            number = None if w is None or w in self._hidden else self._buffers.get(w)
            if w is None or number is None or self._left[number] != 1:
                continue
            if _shape(w) == _shape(v):
                return number
        found = next((n for n in self._idle if self._shapes[n] == _shape(v)), None)
        if found is not None:
            self._idle.remove(found)
        return found

    def _read(self, v: Var, count: int, step: int) -> None:
        number = self._buffers.get(v)
        if number is None:
            return
        self._last[number] = step
        self._left[number] -= count
        if v in self._hidden or self._left[number] or v in self._results:
            return
        if number not in self._idle:
            self._idle.insert(0, number)


def _shape(v: Var) -> tuple[object, ...]:
    """Returns what onnxruntime compares: the sizes of elements and the shapes."""
    return (numpy_dtype(v.dtype).itemsize if v.dtype else v, v.shape)


def _operands(b: Binding) -> dict[Var, int]:
    return {v: max(1, sum(w is v for w in b.inputs)) for v in b.reads()}


def _in_order(block: BindingBlock) -> Iterator[Binding]:
    """Yields the bindings in the order in which onnxruntime runs them."""
    block.schedule()
    number = {b: i for i, b in enumerate(block.bindings)}
    todo = [(b, False) for b in number if not any(v is not None and v.users for v in b.outputs)]
    seen: set[Binding] = set()
    while todo:
        b, done = todo.pop()
        if done:
            yield b
        elif b not in seen:
            seen.add(b)
            todo.append((b, True))
            made = {v.definition for v in b.reads() if v.definition in number} - seen
            todo += ((d, False) for d in sorted(made, key=number.__getitem__))


def _scratch(b: Binding) -> list[int]:
    """Returns the bytes of each buffer that a kernel takes while it runs."""
    x, w = b.operand(0), b.operand(1)
    if x is None or w is None:
        return []
    if b.is_op("Where"):  # the elements of each branch
        wide = x.shape == b.out.shape
        return [size_of(b.out if wide else v) for v in b.inputs[1:] if v is not None]
    if b.is_op("Conv"):  # in and out of the kernel's own layout
        inside = x.definition is not None and x.definition.op in _BLOCKED
        few = x.shape is not None and x.shape[1] in range(_BLOCK)
        return [*(() if inside or few else [size_of(x)]), size_of(b.out)]
    shape, kernel = x.shape, w.shape
    if b.is_op("ConvTranspose") and is_static(shape) and is_static(kernel):
        return [4 * math.prod(kernel[1:]) * math.prod(shape[2:])]
    return []


# ---- the arena ----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Chunk:
    """A part of a region, with its neighbours there."""

    pages: _Pages
    start: int
    size: int
    used: bool = False
    before: _Chunk | None = None
    behind: _Chunk | None = None


class _Pages:
    """The pages of a region that were written: an integer with one bit per page."""

    def __init__(self) -> None:
        self._written = 0

    def write(self, start: int, size: int) -> int:
        """Marks pages as written. Returns the number of those written for the first time."""
        first, last = start // _PAGE, (start + size + _PAGE - 1) // _PAGE
        before = self._written.bit_count()
        self._written |= ((1 << (last - first)) - 1) << first
        return self._written.bit_count() - before


class _Arena:
    """Best fit with coalescing, as onnxruntime's BFCArena."""

    def __init__(self) -> None:
        self.touched = 0  # pages
        self._grown = _FIRST
        self._free: list[tuple[int, int, _Chunk]] = []
        self._made = 0

    def take(self, size: int) -> _Chunk:
        """Returns a chunk of at least this many bytes."""
        rounded = max(_ROUNDED, -(-size // _ROUNDED) * _ROUNDED)
        if not self._free or self._free[-1][0] < rounded:
            self._put(_Chunk(_Pages(), 0, self._region(rounded)))
        chunk = self._free.pop(bisect.bisect_left(self._free, (rounded, -1)))[2]
        rest = chunk.size - rounded
        if chunk.size >= 2 * rounded or rest >= _WASTED:
            behind = _Chunk(chunk.pages, chunk.start + rounded, rest, False, chunk, chunk.behind)
            if chunk.behind is not None:
                chunk.behind.before = behind
            chunk.behind, chunk.size = behind, rounded
            self._put(behind)
        chunk.used = True
        self.touched += chunk.pages.write(chunk.start, size)
        return chunk

    def give(self, chunk: _Chunk) -> None:
        """Takes a chunk back and joins it with its free neighbours."""
        chunk.used = False
        behind, before = chunk.behind, chunk.before
        if behind is not None and not behind.used:
            self._drop(behind)
            self._join(chunk, behind)
        if before is not None and not before.used:
            self._drop(before)
            self._join(before, chunk)
            chunk = before
        self._put(chunk)

    def _region(self, size: int) -> int:
        fits = size <= self._grown
        while size > self._grown:
            self._grown *= 2
        found = self._grown
        if fits:
            self._grown = min(2 * self._grown, _LARGEST)
        return found

    def _put(self, chunk: _Chunk) -> None:
        self._made += 1
        bisect.insort(self._free, (chunk.size, self._made, chunk))

    def _drop(self, chunk: _Chunk) -> None:
        self._free = [entry for entry in self._free if entry[2] is not chunk]

    @staticmethod
    def _join(chunk: _Chunk, behind: _Chunk) -> None:
        chunk.size += behind.size
        chunk.behind = behind.behind
        if behind.behind is not None:
            behind.behind.before = chunk
