"""Finds pairs of values inside two models: by name, by the name of the node, by structure, or by
the module whose result they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto

from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import scheduled
from onnxgrad.verify.layers import scopes
from onnxgrad.verify.value_numbers import Numbers

_SUFFIXES = ("_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output")
# the scale and the zero point of a quantised result among the operands
_SCALES = {
    "QuantizeLinear": (1, 2), "QLinearConcat": (0, 1), "QGemm": (7, 8),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), (6, 7)),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean",
                     "QLinearAveragePool", "QLinearGlobalAveragePool"), (3, 4)),
}  # fmt: skip
# operators that do not change quantised values
_MOVES = frozenset((*domains.MOVES, "MaxPool"))
QUANTISES = frozenset({*_SCALES, "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"})
_ROUNDED = frozenset({"to", "dtype", "saturate"})  # attributes in which narrower copies differ
COUNTED = re.compile(r"(onnx::\w+_|val_|_)?\d+")  # names that another export gives to other values


@frozen
class Pair:
    """A value of the first model and one of the second. `by` is the evidence: name, node, structure
    or scope.
    """

    name: str
    other: str
    by: str
    operator: str  # that computes it in the first

    @property
    def is_guess(self) -> bool:
        """True if the pair may be wrong: it was found by modules, or by a name with a counter of
        the exporter.
        """
        counted = self.by == "name" and self.name == self.other and COUNTED.fullmatch(self.name)
        return self.by == scopes.BY or bool(counted)


def value_pairs(
    a: ModelProto, b: ModelProto, names: Mapping[str, str]
) -> tuple[list[Pair], list[str]]:
    """Returns the pairs of values that the nodes of both main graphs compute, in the order of `a`,
    and the values of `a` without a certain counterpart. `names`: the names in `b` of values of `a`.
    """
    makers, others = _makers(a.graph), _makers(b.graph)
    found = {name: (other, "name") for name, other in _by_name(makers, others, names)}
    ways = (("node", _by_node), ("structure", _by_structure), (scopes.BY, _by_scope))
    for by, pairs in ways:
        left = {name: n for name, n in makers.items() if name not in found}
        # a value that bears a name of the first model is that value, and no other
        used = {other for other, _ in found.values()} | (others.keys() & makers.keys())
        free = {name: n for name, n in others.items() if name not in used}
        found |= {name: (other, by) for name, other in pairs(a, b, left, free, names)}
    made = [
        Pair(name, *found[name], domains.full_name(node.domain, node.op_type))
        for name, node in makers.items()
        if name in found
    ]
    return made, [name for name in makers if name not in found]


def _makers(graph: GraphProto) -> dict[str, NodeProto]:
    """Returns the node of each computed value, in the order of execution."""
    return {
        name: node
        for node in scheduled(list(graph.node))
        if node.op_type != "Constant"
        for name in node.output
        if name
    }


def _by_name(
    makers: Mapping[str, NodeProto], others: Mapping[str, NodeProto], names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yields values with the same name, or with the name that a quantiser gives to the rounded
    value, which later nodes read.
    """
    found = {}
    rounded = _rounded(others) if not _rounded(makers) else {}
    for name in makers:
        other = names.get(name, name)
        base = next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)
        forms = (other, *(f"{other}{s}" for s in _SUFFIXES), base)
        known = next((form for form in forms if form in others), None)
        if known is not None:
            found[name] = rounded.get(known, known)
    for name, node in makers.items():
        read = node.input[0] if node.op_type in ("Relu", "Clip") and node.input else ""
        # quantisers fold an activation into the rounding of its operand, which keeps its own name
        if read not in found or scale_of(others, found[read]) is None:
            continue
        if name not in found:
            found[name] = found.pop(read)
        elif found[read] in others[found[name]].input:
            del found[read]
    yield from found.items()


def stored_pairs(
    stored: Iterable[str], model: ModelProto, names: Mapping[str, str]
) -> tuple[list[Pair], list[str]]:
    """Returns the values inside a model with the names of stored values, in its order, and the
    names without a value. `names`: the names in the model.
    """
    makers = _makers(model.graph)
    given = {name: NodeProto() for name in stored}
    found = {other: name for name, other in _by_name(given, makers, names)}
    pairs = [
        Pair(found[other], other, "name", domains.full_name(node.domain, node.op_type))
        for other, node in makers.items()
        if other in found
    ]
    return pairs, [name for name in given if name not in {p.name for p in pairs}]


def _rounded(makers: Mapping[str, NodeProto]) -> dict[str, str]:
    """Returns the value after QuantizeLinear and DequantizeLinear, by the value before both."""
    quantised = {n.input[0]: o for o, n in makers.items() if n.op_type == "QuantizeLinear"}
    floats = {n.input[0]: o for o, n in makers.items() if n.op_type == "DequantizeLinear"}
    return {name: floats[q] for name, q in quantised.items() if q in floats}


def _by_node(
    a: ModelProto,
    b: ModelProto,
    makers: Mapping[str, NodeProto],
    others: Mapping[str, NodeProto],
    names: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yields results of nodes with the same name, operator and attributes, and with equal
    constants.
    """
    often = [Counter(n.name for n in m.graph.node) for m in (a, b)]
    twins = {n.name: n for n in others.values() if n.name and often[1][n.name] == 1}
    numbers = Numbers(rounding=True)
    constants = [{t.name: numbers.constant(t) for t in m.graph.initializer} for m in (a, b)]
    for name, node in makers.items():
        twin = twins.get(node.name)
        if twin is None or often[0][node.name] > 1 or _plain(node) != _plain(twin):
            continue
        pairs = [(constants[0].get(p), constants[1].get(q)) for p, q in zip(node.input, twin.input)]
        if all(p == q for p, q in pairs if p is not None or q is not None):
            other = twin.output[[*node.output].index(name)]
            if other in others:
                yield name, other


def _plain(node: NodeProto) -> tuple[object, ...]:
    attributes = sorted(
        t.SerializeToString(deterministic=True) for t in node.attribute if t.name not in _ROUNDED
    )
    sizes = len(node.input), len(node.output)
    return domains.canonical(node.domain), node.op_type, node.overload, *sizes, *attributes


def _by_structure(
    a: ModelProto,
    b: ModelProto,
    makers: Mapping[str, NodeProto],
    others: Mapping[str, NodeProto],
    names: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yields values that are unique in both models by their value number; float constants are equal
    if they are equal in float16.
    """
    numbers, back = Numbers(rounding=True), {theirs: ours for ours, theirs in names.items()}
    first, second = numbers.of(a.graph), numbers.of(b.graph, back)
    often = [Counter(each.values()) for each in (first, second)]
    known = {number: name for name, number in second.items()}
    for name in makers:
        number = first.get(name, -1)
        if often[0][number] == often[1][number] == 1 and known[number] in others:
            yield name, known[number]


def _by_scope(
    a: ModelProto,
    b: ModelProto,
    makers: Mapping[str, NodeProto],
    others: Mapping[str, NodeProto],
    names: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yields values that are the only result of a module with the same name."""
    yield from scopes.by_scope(a.graph, b.graph, makers, others)


def scale_of(makers: Mapping[str, NodeProto], name: str) -> tuple[str, str] | None:
    """Returns the names of the scale and the zero point of a quantised value; None if it is not
    quantised, or they are unknown.
    """
    for _ in range(len(makers) + 1):
        node = makers.get(name)
        if node is None:
            return None
        if node.op_type == "DynamicQuantizeLinear":
            return (node.output[1], node.output[2]) if name == node.output[0] else None
        at = _SCALES.get(node.op_type)
        if at is not None and name == node.output[0]:
            given = [*node.input, ""]
            return given[at[0]], given[at[1]] if at[1] < len(node.input) else ""
        if node.op_type not in _MOVES or not node.input or name != node.output[0]:
            return None
        name = node.input[0]
    return None


def makers_of(model: ModelProto) -> dict[str, NodeProto]:
    """Returns the node that computes each value of the main graph."""
    return {name: node for node in model.graph.node for name in node.output if name}
