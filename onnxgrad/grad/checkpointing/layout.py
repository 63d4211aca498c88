"""The nodes that onnxruntime's CPU provider runs for the bindings of a graph: it computes
convolutions in a blocked layout of its own (NCHWc).

A value may exist in both layouts. A convolution with constant weights reads and writes the blocked
one, activations, pools, sums and concatenations pass it on, and all other operators read the plain
one. Nodes between the layouts copy a value once for all its readers. An activation, or a sum with
another blocked value, becomes part of the convolution if nothing else reads that result, and a
product by a number a factor of its weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onnxgrad.frozen import frozen
from onnxgrad.grad.checkpointing.costs import size_of
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.types import element_count, is_static
from onnxgrad.ir.var import Var

_BLOCK = 16  # channels in a block, with AVX-512
_ALIGNED = 4  # a multiple of this number of channels can be copied into the blocked layout
_ACTIVATIONS = frozenset(("HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"))
_POOLS = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"))
_SUMS = frozenset(("Add", "Mul", "Sum"))
_LAST = [0, 2, 3, 1]  # the permutation that puts channels last
_PLAIN, SUMMED = "Conv", "Conv, Add"  # the latter adds its result to its first operand, in place


@frozen
class Blocked:
    """A value in the blocked layout."""

    plain: Var


Value: TypeAlias = "Var | Blocked"


@dataclass(eq=False)
class Node:
    """A node, with the operands of its kernel, the values that its nested graphs read, and the
    binding that it computes (None for a copy between layouts).
    """

    op: str
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    binding: Binding | None = None


def bytes_of_value(v: Value) -> int:
    """Returns the bytes of a value. In the blocked layout, channels fill blocks."""
    if isinstance(v, Var):
        return size_of(v)
    channels = _channels(v.plain) or _BLOCK
    return size_of(v.plain) // channels * _filled(channels)


def shape_of_value(v: Value) -> tuple[object, ...] | None:
    """Returns the shape of a value. In the blocked layout, channels fill blocks."""
    shape = v.shape if isinstance(v, Var) else v.plain.shape
    if isinstance(v, Var) or shape is None or not (channels := _channels(v.plain)):
        return shape
    return (shape[0], _filled(channels), *shape[2:])


def _filled(channels: int) -> int:
    return -(-channels // _BLOCK) * _BLOCK


def executed(
    bindings: Sequence[Binding], constants: Collection[Var], hidden: set[Var]
) -> list[Node]:
    """Returns the nodes for bindings in order. Nodes in the blocked layout come behind the others,
    which decides the order of their run.

    hidden: values of unknown size, which onnxruntime does not add in the blocked layout.
    """
    layout = _Layout(constants, hidden)
    plain = [node for b in bindings if (node := layout.node(b)) is not None]
    return [*plain, *layout.blocked, *layout.copies([*plain, *layout.blocked])]


class _Layout:
    """Chooses the layout of each value."""

    def __init__(self, constants: Collection[Var], hidden: set[Var]) -> None:
        self.blocked: list[Node] = []
        self._constants, self._hidden = constants, hidden
        self._makers: dict[Var, Node] = {}  # of each value that is computed in the blocked layout
        self._copied: set[Var] = set()  # into the blocked layout
        self._ended: set[Node] = set()  # convolutions with an activation

    def node(self, b: Binding) -> Node | None:
        """Returns the node of a binding that reads the plain layout. Others are appended to
        `blocked`, and None is returned.
        """
        inputs = [v for v in b.inputs if v is not None]
        inputs += [v for v in b.reads() if v not in inputs]
        if b.is_op("Mul") and self._scales(b, *inputs):
            return None
        if b.domain or not inputs or not self._is_blocked(b, inputs):
            name = full_name(b.domain, b.op)
            return Node(name, inputs, [v for v in b.outputs if v is not None], b)
        if not any(self._joins(b, v, inputs) for v in inputs):
            self._add(b, inputs)
        return None

    def copies(self, nodes: Sequence[Node]) -> list[Node]:
        """Returns the copies from the blocked into the plain layout."""
        read = {v for node in nodes for v in node.inputs}
        needed = [v for v in self._makers if v in read or v.returned]
        return [Node("Reorder", [Blocked(v)], [v]) for v in needed]

    def _is_blocked(self, b: Binding, inputs: Sequence[Var]) -> bool:
        """Whether the node of the binding reads the blocked layout."""
        x, blocked = inputs[0], [v in self._makers for v in inputs]
        if b.op == "Conv":
            return self._is_blocked_convolution(b)
        if b.op == "Transpose":
            return blocked[0] and list(b.attr("perm", ())) == _LAST
        if b.op in _POOLS:
            return len(b.outputs) == 1 and x.rank == 4 and _channels(x) % _BLOCK == 0 < _channels(x)
        if b.op == "Concat":
            return all(blocked) and b.attr("axis", 0) == 1
        if b.op in _SUMS:
            same = len({v.shape for v in inputs}) == 1
            return all(blocked) and same and self._hidden.isdisjoint(inputs)
        return blocked[0] and b.op in _ACTIVATIONS

    def _is_blocked_convolution(self, b: Binding) -> bool:
        w, group = b.inputs[1], b.attr("group", 1)
        if w is None or w not in self._constants or not is_static(w.shape) or w.rank != 4:
            return False
        outer, inner = w.shape[:2]
        if group == 1:
            return inner < _BLOCK or inner % _ALIGNED == 0
        each = 1 if inner == 1 and outer == group else _BLOCK
        return inner % each == 0 and outer % (group * each) == 0

    def _scales(self, b: Binding, v: Var, factor: Var | None = None) -> bool:
        """Whether the binding multiplies the result `v` of a convolution by a number, which
        onnxruntime puts into the weights.
        """
        maker = self._makers.get(v)
        if maker is None or maker.op != _PLAIN or maker in self._ended or v.returned:
            return False
        if factor not in self._constants or len(v.users) > 1:
            return False
        if factor is None or element_count(factor.shape) != 1:
            return False
        self._rename(v, b.out)
        return True

    def _rename(self, v: Var, result: Var) -> None:
        """Lets the convolution that computes `v` return `result` instead."""
        maker = self._makers.pop(v)
        maker.outputs = [Blocked(result)]
        self._makers[result] = maker

    def _joins(self, b: Binding, v: Var, inputs: Sequence[Var]) -> bool:
        """Whether the binding becomes part of the convolution that computes its operand `v`."""
        maker = self._makers.get(v)
        if maker is None or maker.op not in (_PLAIN, SUMMED) or len(v.users) > 1 or v.returned:
            return False
        others = [Blocked(w) for w in inputs if w is not v]
        if maker in self._ended or b.op not in (*_ACTIVATIONS, "Add", "Sum"):
            return False
        if b.op in _ACTIVATIONS:
            self._ended.add(maker)
        elif maker.op == _PLAIN and len(others) == 1:
            maker.op, maker.inputs = SUMMED, [*others, *maker.inputs]
        else:
            return False
        self._rename(v, b.out)
        return True

    def _add(self, b: Binding, inputs: Sequence[Var]) -> None:
        x, *rest = inputs
        convolution = b.op == _PLAIN
        copied = not convolution or b.attr("group", 1) > 1 or _channels(rest[0]) >= _BLOCK
        reads = [Blocked(x) if copied else x, *(rest if convolution else map(Blocked, rest))]
        node = Node(b.op, reads, [b.out if b.op == "Transpose" else Blocked(b.out)], b)
        self.blocked.append(node)
        if copied and x not in self._makers and x not in self._copied:
            self._copied.add(x)
            self.blocked.append(Node("Reorder", [x], [Blocked(x)]))
        if b.op != "Transpose":
            self._makers[b.out] = node


def _channels(v: Var) -> int:
    """Returns the number of channels; 0 if it is unknown."""
    found = v.shape[1] if v.shape is not None and len(v.shape) > 1 else None
    return found if isinstance(found, int) else 0
