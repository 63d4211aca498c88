"""Open sizes in the bodies of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxgrad.batching.layout import OLDEST_SCAN, Refused, Size
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.transform.sizes.agreement import Meeting
from onnxgrad.transform.sizes.expressions import Expressions
from onnxgrad.transform.sizes.node import Node
from onnxgrad.transform.sizes.origins import Origins, states_of
from onnxgrad.transform.sizes.targets import is_late


@dataclass(frozen=True)
class Bodies:
    """Follows open sizes into bodies.

    inside: follows sizes through nodes, and returns whether one changed.
    meet: makes axes of a node's operands agree, and returns whether one changed.
    """

    at: Expressions
    origins: Origins
    inside: Callable[[Sequence[Binding]], bool]
    meet: Callable[[Binding, Sequence[Meeting]], bool]

    def follow(self, node: Node, touched: Sequence[Var]) -> list[Type | None] | None:
        """Returns the types of a node's results, or None if a node has changed. `touched`: the
        values with open sizes that the node reads. Raises Refused.
        """
        b = node.binding
        if b.op == "If" and not b.domain:
            return self._branches(b)
        if b.op == "Loop" and not b.domain:
            return self._loop(node, touched)
        if b.op == "Scan" and not b.domain and b.version >= OLDEST_SCAN:
            return self._scan(b)
        raise Refused(f"its body reads '{touched[0].name}', whose size is open")

    def _into(self, block: BindingBlock) -> bool:
        block.schedule()
        return self.inside([*block.bindings])

    # ---- If ------------------------------------------------------------------------------------

    def _branches(self, b: Binding) -> list[Type | None] | None:
        then, otherwise = b.blocks["then_branch"], b.blocks["else_branch"]
        if self._into(then) or self._into(otherwise):
            return None
        types: list[Type | None] = []
        for i, (x, y) in enumerate(zip(then.outputs, otherwise.outputs, strict=True)):
            if self._follows(then, i, y) or self._follows(otherwise, i, x):
                return None
            types.append(self._common(x, y))
        return types

    def _common(self, x: Var, y: Var) -> Type | None:
        if x.shape is None or y.shape is None or len(x.shape) != len(y.shape):
            return TensorType(x.dtype, None) if isinstance(x.type, TensorType) else x.type
        pairs = zip(x.shape, y.shape, strict=True)
        return TensorType(x.dtype, tuple(d if self.at.same(d, e) else None for d, e in pairs))

    def _follows(self, block: BindingBlock, i: int, like: Var | None) -> bool:
        """Makes the fixed axes of a body's output open that are open in another value and have its
        size in the file. Returns whether a node changed.
        """
        wanted = self._open_only_in(like, block.outputs[i])
        if wanted:
            self.origins.result(block, i, wanted)
        return bool(wanted)

    def _open_only_in(self, like: Var | None, v: Var | None) -> dict[int, Size]:
        """Returns the axes of `v` that are fixed at the size that is open in `like`."""
        given, wished = (v and v.shape) or (), (like and like.shape) or ()
        if len(given) != len(wished):
            return {}
        return {
            axis: e
            for axis, (d, e) in enumerate(zip(given, wished, strict=True))
            if e is not None
            and self.at.is_open(e)
            and not self.at.is_open(d)
            and self.at.at(d) == self.at.at(e)
        }

    # ---- Loop and Scan -------------------------------------------------------------------------

    def _loop(self, node: Node, touched: Sequence[Var]) -> list[Type | None] | None:
        b = node.binding
        body, first = b.blocks["body"], 2
        for given, inside in zip(b.inputs[first:], body.inputs[first:], strict=True):
            if given is not None and given.type is not None:
                inside.type = given.type
        if self._into(body) or self._states(b, body, first, 1):
            return None
        count = self._runs(node, body, touched)
        states = states_of(b)
        return [
            *_types(b.inputs[first:]),
            *(_stacked(v, 0, count) for v in body.outputs[1 + states :]),
        ]

    def _states(self, b: Binding, body: BindingBlock, first: int, ends: int) -> bool:
        """Makes a state's sizes before and after a run agree. Returns whether a node changed.

        `first`: the operands before the states. `ends`: the body's outputs before the states.
        """
        for i in range(states_of(b)):
            before, after = b.inputs[first + i], body.outputs[ends + i]
            if self._follows(body, ends + i, before):
                return True
            wanted = self._open_only_in(after, before)
            if wanted:
                self.origins.follow(b, first + i, wanted)
                return True
            if before is None or before.shape is None or after.shape is None:
                continue
            pairs = zip(before.shape, after.shape, strict=False)
            if len(before.shape) != len(after.shape) or not all(self.at.same(*p) for p in pairs):
                raise Refused(f"its state '{before.name}' changes its size from run to run")
        return False

    def _runs(self, node: Node, body: BindingBlock, touched: Sequence[Var]) -> Size | None:
        """Returns the number of runs of a Loop, or None if it may end before."""
        if node.binding.operand(0) is None:
            return None
        try:
            count = next(iter(node.elements(0) or ()), None)
        except Refused:
            return None
        if isinstance(count, int) and touched:
            count = self._fixed_runs(node, count, touched)
        return count if _goes_on(node.binding, body) else None

    def _fixed_runs(self, node: Node, count: int, touched: Sequence[Var]) -> Size:
        """Returns the number of runs, which may be an open size."""
        opened = {
            str(p): n
            for v in touched
            for d in v.shape or ()
            if self.at.is_open(p := self.at.plain(d)) and (n := self.at.at(d)) is not None
        }
        for number in opened.values():
            if count != number and is_late(count, number):
                raise Refused(f"its number of runs, {count} of {number}, may count from the end")
        meanings: dict[str, Size] = {f"{d} runs": d for d, n in opened.items() if n == count}
        found = node.choose({**meanings, f"{count} runs": count})
        old = node.binding.operand(0)
        if isinstance(found, str) and old is not None:
            shape = np.ones(old.rank or 0, np.int64)
            node.read(0, op.Reshape(node.vector([found]), shape))
            node.note([count], [found])
        return found

    def _scan(self, b: Binding) -> list[Type | None] | None:
        body, states, count = b.blocks["body"], states_of(b), int(b.attr("num_scan_inputs"))
        axes = [
            int(a) % max((v and v.rank) or 1, 1)
            for a, v in zip(
                b.attr("scan_input_axes") or [0] * count, b.inputs[states:], strict=True
            )
        ]
        places = tuple((states + i, axis) for i, axis in enumerate(axes))
        if self.meet(b, [Meeting(places)]):
            return None
        for k, (given, inside) in enumerate(zip(b.inputs, body.inputs, strict=True)):
            if given is None or given.shape is None:
                raise Refused(f"the shape of operand {k} is not known")
            shape = list(given.shape)
            if k >= states:
                del shape[axes[k - states]]
            inside.type = TensorType(given.dtype, tuple(shape))
        if self._into(body) or self._states(b, body, 0, 0):
            return None
        walked = b.inputs[states]
        length = None if walked is None else (walked.shape or ())[axes[0]]
        ends = body.outputs[states:]
        made = b.attr("scan_output_axes") or [0] * len(ends)
        stacked = [_stacked(v, int(a), length) for v, a in zip(ends, made, strict=True)]
        return [*_types(b.inputs[:states]), *stacked]


def _types(values: Sequence[Var | None]) -> list[Type | None]:
    return [None if v is None else v.type for v in values]


def _goes_on(b: Binding, body: BindingBlock) -> bool:
    """Whether the condition of a Loop is true in every run."""
    start, end = b.operand(1), body.outputs[0]
    while end.definition is not None and end.definition.is_op("Identity"):
        end = end.definition.inputs[0] or end
    always = end is body.inputs[1] or (end.const is not None and bool(end.const.all()))
    return always and (start is None or (start.const is not None and bool(start.const.all())))


def _stacked(v: Var, axis: int, length: Size | None) -> Type | None:
    if v.shape is None:
        return TensorType(v.dtype, None) if isinstance(v.type, TensorType) else None
    axis %= len(v.shape) + 1
    return TensorType(v.dtype, (*v.shape[:axis], length, *v.shape[axis:]))
