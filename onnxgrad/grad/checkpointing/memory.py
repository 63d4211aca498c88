"""The memory that a run of a graph takes in onnxruntime's CPU provider, at known sizes.

The model follows onnxruntime 1.32, which plans a sequential run with default options as follows:

- Nodes run depth-first from the graph's sinks, the last of them first. Convolutions and their
  neighbours have a layout of their own, with copies between both (`layout`).
- If the operator works in place, a result takes over the buffer of its first operand if that ends
  there. Sums and products don't work in place, activations do.
- Otherwise it takes a free buffer of a value of equal shape. That buffer is kept until the last
  value in it ends, even while it is idle. In a network with values of many shapes, such as a U-Net,
  the buffers hold more than the values do. Values whose size is hidden (`views`) do neither.
- All other buffers come from an arena, which grows by regions of doubling size, and splits and
  joins chunks of them. A page counts once it was written.
- Transposed convolutions unfold one image at a time. Where copies the elements of each branch.

Fusions of other nodes are not modelled. `MARGIN` and `KERNELS` allow for them
(scripts/results/checkpoint.md).
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnxgrad.grad.checkpointing.costs import size_of
from onnxgrad.grad.checkpointing.layout import (
    SUMMED,
    Blocked,
    Node,
    Value,
    bytes_of_value,
    executed,
    shape_of_value,
)
from onnxgrad.grad.checkpointing.views import hidden_in
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import VIEWS
from onnxgrad.ir.types import is_static, numpy_dtype
from onnxgrad.ir.var import Var

MARGIN = 1.05  # a factor for the planned bytes
KERNELS = 5 << 19  # bytes: code, packed operands and other scratch of kernels

# operators whose result shares the memory of the first operand
_VIEWS = frozenset(VIEWS)
_IN_PLACE = frozenset((
    "Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu",
    "ScatterElements", "Selu", "Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh",
    "ThresholdedRelu", SUMMED,
))  # fmt: skip
_ROUNDED = 256  # bytes: the sizes of chunks are multiples
_PAGE = 1024  # bytes; the system's pages are larger, which matters only for small graphs
_MOST_PAGES = 1 << 26  # of one region: those of a region beyond 64 GiB are larger
_FIRST, _LARGEST = 1 << 20, 1 << 30  # bytes of the first and the largest region
_WASTED = 1 << 27  # bytes at the end of a chunk that is not split


def peak_of(block: BindingBlock) -> int:
    """Returns the bytes that a run takes in addition to inputs and weights. Results count."""
    arena, chunks = _Arena(), dict[int, _Chunk]()
    for step in _Plan(block).steps():
        scratch = [arena.take(size) for size in step.operands]
        for number, size in step.begin:
            chunks[number] = arena.take(size)
        scratch += [arena.take(size) for size in step.scratch]
        for chunk in scratch:
            arena.give(chunk)
        for number in step.end:
            arena.give(chunks.pop(number))
    written = arena.touched
    return int(MARGIN * written) + min(KERNELS, written // 4)


# ---- which buffer each value has, and when ------------------------------------------------------


@dataclass
class _Step:
    """The buffers that begin before a node runs, with their sizes, and end after it.

    operands, scratch: bytes of buffers that its kernel takes before and after those for results.
    """

    begin: list[tuple[int, int]] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    operands: Sequence[int] = ()
    scratch: Sequence[int] = ()


class _Plan:
    """The buffers of a block's values."""

    def __init__(self, block: BindingBlock) -> None:
        block.schedule()
        constants = {v for v in block.vars() if v.is_constant}
        bindings = [b for b in block.bindings if not _is_folded(b, constants)]
        self._hidden = hidden_in(bindings, constants)
        self._order = list(_in_order(executed(bindings, constants, self._hidden)))
        self._results = set(block.outputs)
        self._reads = Counter(v for node in self._order for v in node.inputs)
        self._buffers: dict[Value, int | None] = dict.fromkeys([*block.inputs, *constants])
        self._sizes: list[int] = []
        self._left: list[int] = []  # reads of each buffer
        self._last: list[int] = []  # the step of each buffer's last read
        self._shapes: list[object] = []  # of each buffer; values of equal shapes may share it
        self._idle: list[int] = []

    def steps(self) -> list[_Step]:
        """Returns the steps in the order of a run."""
        steps = []
        for i, node in enumerate(self._order):
            step = _Step(operands=_copied_operands(node), scratch=_scratch(node))
            for v in node.outputs:
                if (number := self._place(v, node)) is not None:
                    step.begin.append((number, self._sizes[number]))
            for v, count in Counter(node.inputs).items():
                self._read(v, count, i)
            for v in node.outputs:
                self._read(v, 0, i)
            steps.append(step)
        kept = {self._buffers.get(v) for v in self._results}
        for number, last in enumerate(self._last):
            if number not in kept:
                steps[last].end.append(number)
        return steps

    def _place(self, v: Value, node: Node) -> int | None:
        """Chooses the buffer of a result; returns its number if it is new."""
        reads = self._reads[v]
        if node.op in _VIEWS:
            number = self._buffers.get(node.inputs[0])
            self._buffers[v] = number
            if number is not None:
                self._left[number] += reads
            return None
        taken = None if v in self._results else self._taken(v, node)
        if taken is not None:
            self._buffers[v] = taken
            self._left[taken] += reads
            return None
        self._buffers[v] = number = len(self._sizes)
        self._sizes.append(bytes_of_value(v))
        self._shapes.append(_shape(v))
        self._left.append(reads)
        self._last.append(0)
        return number

    def _taken(self, v: Value, node: Node) -> int | None:
        """Returns the buffer of an operand that ends here, or one that is idle."""
        if self._is_open(v):
            return None
        if node.op in _IN_PLACE and not self._is_open(w := node.inputs[0]):
            number = self._buffers.get(w)
            if number is not None and self._left[number] == 1 and _shape(w) == _shape(v):
                return number
        found = next((n for n in self._idle if self._shapes[n] == _shape(v)), None)
        if found is not None:
            self._idle.remove(found)
        return found

    def _is_open(self, v: Value) -> bool:
        """Whether onnxruntime does not know the size of the value when it loads the model."""
        plain = v.plain if isinstance(v, Blocked) else v
        return not is_static(plain.shape) or plain in self._hidden

    def _read(self, v: Value, count: int, step: int) -> None:
        number = self._buffers.get(v)
        if number is None:
            return
        self._last[number] = step
        self._left[number] -= count
        if self._is_open(v) or self._left[number] or v in self._results:
            return
        if number not in self._idle:
            self._idle.insert(0, number)


def _is_folded(b: Binding, constants: set[Var]) -> bool:
    """Whether onnxruntime computes the binding while it loads the model: its results are added to
    the constants.
    """
    found = not b.blocks and not draws(b) and all(v in constants for v in b.reads())
    if found:
        constants.update(v for v in b.outputs if v is not None)
    return found


def _shape(v: Value) -> tuple[object, ...]:
    """Returns what onnxruntime compares: the sizes of elements and the shapes."""
    plain = v.plain if isinstance(v, Blocked) else v
    return (numpy_dtype(plain.dtype).itemsize if plain.dtype else v, shape_of_value(v))


def _in_order(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields the nodes in the order in which onnxruntime runs them."""
    number = {node: i for i, node in enumerate(nodes)}
    makers = {v: node for node in nodes for v in node.outputs}
    read = {v for node in nodes for v in node.inputs}
    todo = [(node, False) for node in nodes if read.isdisjoint(node.outputs)]
    seen: set[Node] = set()
    while todo:
        node, done = todo.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            made = {makers[v] for v in node.inputs if v in makers} - seen
            todo += ((d, False) for d in sorted(made, key=number.__getitem__))


def _copied_operands(node: Node) -> list[int]:
    """Returns the bytes of both branches of a Where, of which it copies the elements."""
    b = node.binding
    if b is None or not b.is_op("Where"):
        return []
    wide = b.inputs[0] is not None and b.inputs[0].shape == b.out.shape
    return [size_of(b.out if wide else v) for v in b.inputs[1:] if v is not None]


def _scratch(node: Node) -> list[int]:
    """Returns the bytes of the unfolded image of a ConvTranspose."""
    b = node.binding
    if b is None or not b.is_op("ConvTranspose"):
        return []
    shape, kernel = (None if v is None else v.shape for v in b.inputs[:2])
    if is_static(shape) and is_static(kernel):
        return [4 * math.prod(kernel[1:]) * math.prod(shape[2:])]
    return []


# ---- the arena ----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Chunk:
    """A part of a region, with its neighbours there."""

    region: _Region
    start: int
    size: int
    used: bool = False
    before: _Chunk | None = None
    behind: _Chunk | None = None


class _Region:
    """A region with its pages that were written: an integer with one bit per page."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self._page = max(_PAGE, size // _MOST_PAGES)
        self._written = 0

    def write(self, start: int, size: int) -> int:
        """Marks pages as written. Returns the bytes of those written for the first time."""
        first, last = start // self._page, (start + size + self._page - 1) // self._page
        before = self._written.bit_count()
        self._written |= ((1 << (last - first)) - 1) << first
        return (self._written.bit_count() - before) * self._page


class _Arena:
    """Best fit with coalescing, as onnxruntime's BFCArena."""

    def __init__(self) -> None:
        self.touched = 0  # bytes of pages
        self._grown = _FIRST
        self._free: list[tuple[int, int, int, _Chunk]] = []
        self._regions = 0

    def take(self, size: int) -> _Chunk:
        """Returns a chunk of at least this many bytes."""
        rounded = max(_ROUNDED, -(-size // _ROUNDED) * _ROUNDED)
        if not self._free or self._free[-1][0] < rounded:
            self._regions += 1
            size_of_region = self._grow(rounded)
            self._put(_Chunk(_Region(self._regions, size_of_region), 0, size_of_region))
        chunk = self._free.pop(bisect.bisect_left(self._free, (rounded,)))[3]
        rest = chunk.size - rounded
        if chunk.size >= 2 * rounded or rest >= _WASTED:
            behind = _Chunk(chunk.region, chunk.start + rounded, rest, False, chunk, chunk.behind)
            if chunk.behind is not None:
                chunk.behind.before = behind
            chunk.behind, chunk.size = behind, rounded
            self._put(behind)
        chunk.used = True
        self.touched += chunk.region.write(chunk.start, size)
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

    def _grow(self, size: int) -> int:
        fits = size <= self._grown
        while size > self._grown:
            self._grown *= 2
        found = self._grown
        if fits:
            self._grown = min(2 * self._grown, _LARGEST)
        return found

    def _put(self, chunk: _Chunk) -> None:
        bisect.insort(self._free, self._entry(chunk))

    def _drop(self, chunk: _Chunk) -> None:
        del self._free[bisect.bisect_left(self._free, self._entry(chunk))]

    @staticmethod
    def _entry(chunk: _Chunk) -> tuple[int, int, int, _Chunk]:
        """Returns the key of a free chunk: of equal sizes, the lowest address comes first, and the
        system puts a new region below the others.
        """
        return chunk.size, -chunk.region.number, chunk.start, chunk

    @staticmethod
    def _join(chunk: _Chunk, behind: _Chunk) -> None:
        chunk.size += behind.size
        chunk.behind = behind.behind
        if behind.behind is not None:
            behind.behind.before = chunk
