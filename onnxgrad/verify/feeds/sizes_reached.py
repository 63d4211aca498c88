"""Inputs whose values decide a size, a number of turns, an index or the length of a window, however
they are computed: such an input keeps its usual values, because others fail, or take all time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx

from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import graphs_of
from onnxgrad.verify.feeds.data_flow import DataFlow, Key
from onnxgrad.verify.feeds.value_bounds import STRUCTURAL

# operands that are a size, a number of turns, a place or a length
_PLACES = STRUCTURAL | {
    ("Reshape", 1), ("Slice", 1), ("Slice", 2), ("Slice", 3), ("Squeeze", 1), ("Unsqueeze", 1),
    ("GatherND", 1), ("ScatterND", 1), ("MaxUnpool", 1), ("CumSum", 1), ("Col2Im", 1),
    ("Col2Im", 2), ("BitShift", 1), ("MelWeightMatrix", 0), ("MelWeightMatrix", 1),
    ("AffineGrid", 1), ("MaxUnpool", 2), ("Loop", 0),
}  # fmt: skip
# results that are bounded, whatever the operands are: a size, a place or a truth value
_BOUNDED = {
    *domains.COMPARISONS, *domains.LOGICAL, "Shape", "Size", "ArgMax", "ArgMin", "NonZero",
    "NonMaxSuppression", "Not", "IsNaN", "IsInf", "Sign",
}  # fmt: skip


def decides_sizes(flow: DataFlow, name: str) -> bool:
    """Returns whether values of the input `name` reach an operand that is a size, a number of
    turns, an index or a length, or decide whether a loop goes on.
    """
    if name not in flow.decides:
        bodies = _Bodies(flow)
        for each in {name, *(value.name for value in flow.inputs)}:
            flow.decides[each] = any(_ends(flow, bodies, each))
    return flow.decides[name]


def _ends(flow: DataFlow, bodies: _Bodies, name: str) -> Iterator[bool]:
    """Follows an input through all operators. A state is a value, and whether it is bounded: then
    it can only decide whether a loop goes on.
    """
    todo: list[tuple[Key, bool]] = [(("", name), False)]
    seen: set[tuple[Key, bool]] = set()
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        key, bounded = state
        yield key in bodies.conditions
        todo.extend((other, bounded) for other in (*flow.formals.get(key, ()), *bodies.onward[key]))
        for node, index, scope in flow.consumers.get(key, ()):
            place = node.op_type, index
            yield place == ("Loop", 1) or (not bounded and place in _PLACES)
            after = bounded or _is_bounded(flow, node, scope) or place == ("Where", 0)
            called = (node.domain, node.op_type, node.overload) in flow.functions
            outputs = () if called or id(node) in bodies.nodes else node.output
            todo.extend(
                ((scope, output), after or (node.op_type == "TopK" and number == 1))
                for number, output in enumerate(outputs)
                if output
            )


def _is_bounded(flow: DataFlow, node: onnx.NodeProto, scope: str) -> bool:
    """Whether constants of the model bound the results of a node."""
    if node.op_type not in ("Cast", "Mod", "Clip"):
        return node.op_type in _BOUNDED
    attributes = {a.name: a.i for a in node.attribute}
    if node.op_type == "Cast":
        return attributes.get("to") == onnx.TensorProto.BOOL
    limits = [flow.scalar((scope, name)) for name in node.input[1:]]
    known = bool(limits) and None not in limits
    return known and (not attributes.get("fmod") if node.op_type == "Mod" else len(limits) > 1)


class _Bodies:
    """The bodies and the functions of a model: where their results go (`onward`), the conditions
    of loops, and the nodes that have bodies, by identity.
    """

    def __init__(self, flow: DataFlow) -> None:
        self.onward: dict[Key, list[Key]] = defaultdict(list)
        self.conditions: set[Key] = set()
        self.nodes: set[int] = set()
        done: set[int] = set()
        for (scope, _), node in [*flow.producers.items()]:
            if id(node) in done:
                continue
            done.add(id(node))
            for graph in graphs_of(node):
                self.nodes.add(id(node))
                results = [value.name for value in graph.output]
                if node.op_type == "Loop":
                    self.conditions.add((scope, results.pop(0)))
                for result, output in zip(results, node.output, strict=False):
                    self.onward[scope, result].append((scope, output))
                if node.op_type in ("Loop", "Scan"):  # a state of the next turn
                    states = graph.input[2 if node.op_type == "Loop" else 0 :]
                    for result, state in zip(results, states, strict=False):
                        self.onward[scope, result].append((scope, state.name))
            function = flow.functions.get((node.domain, node.op_type, node.overload))
            inside = ":".join((node.domain, node.op_type, node.overload))
            for result, output in zip(function.output, node.output) if function else ():
                self.onward[inside, result].append((scope, output))
