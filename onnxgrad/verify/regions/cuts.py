"""Cuts two models at discontinuities: operators whose results jump, such as QuantizeLinear or TopK.
Also cuts before a last monotone operator, because onnxruntime's Sigmoid has an absolute error.

At a cut, the original's result becomes an input of both models, and the operands become outputs.
Suppose that the operands of every cut agree if all results before it are the original's. Then both
models decide alike, except where an operand lies within the error of its region of a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import copy_of, operator, scheduled
from onnxgrad.verify.changed_region import reads
from onnxgrad.verify.layers.pairs import COUNTED
from onnxgrad.verify.proof_model import ProofModel, proof_model
from onnxgrad.verify.ties import WHOLE, decisions
from onnxgrad.verify.value_numbers import Numbers
from onnxgrad.verify.values import Value

# operators that jump although no float operand of a known type decides
_QUANTISE = frozenset({
    "QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",
    "QGemm",
})  # fmt: skip
# operators whose small results are less exact in onnxruntime than their operands
_MONOTONE = frozenset(
    {"Sigmoid", "HardSigmoid", "Tanh", "Softplus", "Exp", "Erf", "Elu", "Celu", "Selu"}
)
# operators that move a last result
_MOVES = frozenset((*domains.MOVES, "Cast", "Concat"))


@frozen
class Cut:
    """A node of the original at which both models are cut, and where the second model computes the
    same values.

    `others`: the second model's names of `results`. `twin`: the second model's node, if it has the
    same operator and attributes: then the operands are compared. Otherwise the results are.
    `certain`: nothing else of the second model could be the counterpart.
    """

    node: NodeProto
    results: tuple[str, ...]
    others: tuple[str, ...]
    twin: NodeProto | None
    certain: bool


class Side:
    """A model, and its nodes at which it may be cut (`cuttable`)."""

    def __init__(self, model: ModelProto) -> None:
        self.proto = model
        graph = model.graph
        live, nodes = {v.name for v in graph.output}, list[NodeProto]()
        for node in reversed(scheduled(list(graph.node))):
            if not live.isdisjoint(node.output):
                live.update(reads(node))
                nodes.append(node)
        self.nodes, self.live = nodes[::-1], live
        self.places = {id(node): i for i, node in enumerate(self.nodes)}
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        weights = {t.name: t for t in graph.initializer}
        # below IR 4, weights are listed among the inputs
        moving = {v.name for v in graph.input}
        moving -= weights.keys() if model.ir_version < 4 else set()
        self.constants = {name: t for name, t in weights.items() if name not in moving}
        for node in self.nodes:
            if not moving.isdisjoint(reads(node)):
                moving.update(node.output)
        names, lasts = {node.output[0] for node in decisions(model)}, {*self._last()}
        self.smooth = lasts
        self.cuttable = [
            n
            for n in self.nodes
            if not moving.isdisjoint(reads(n))
            and (n.output[0] in names or id(n) in lasts or _rounds(n))
        ]
        numbers = Numbers()
        found = numbers.of(graph)
        self.same = {id(n): (numbers.key(n, found), len(n.output)) for n in self.cuttable}

    def _last(self) -> Iterator[int]:
        """Yields the identities of the monotone nodes whose results are at most moved."""
        ends = {v.name for v in self.proto.graph.output}
        for node in reversed(self.nodes):
            if not ends.isdisjoint(node.output) and node.op_type in _MOVES:
                ends.update(node.input)
            elif not ends.isdisjoint(node.output) and node.op_type in _MONOTONE:
                yield id(node)

    def repeats(self, node: NodeProto) -> list[NodeProto]:
        """Returns the nodes to cut that compute the same as a node, the node included."""
        key = self.same.get(id(node))
        return [n for n in self.cuttable if self.same[id(n)] == key] if key else [node]

    def between(self, results: Collection[str]) -> Iterator[int]:
        """Yields the identities of the nodes between these results, their makers included."""
        wanted = {*results}
        start = min(self.places[id(self.makers[name])] for name in results)
        for node in reversed(self.nodes[start:]):
            if not wanted.isdisjoint(node.output):
                wanted.update(reads(node))
                yield id(node)

    def used(self, node: NodeProto) -> tuple[str, ...]:
        """Returns the results of a node that something reads."""
        return tuple(name for name in node.output if name in self.live)

    def form(self, node: NodeProto) -> tuple[object, ...]:
        """Returns the operator, its attributes, and which operands and results it has."""
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        present = tuple(map(bool, node.input)), self._places(node)
        return (domains.canonical(node.domain), node.op_type, node.overload, *attributes, *present)

    def key(self, node: NodeProto) -> tuple[object, ...]:
        """Returns the form of a node with its constant operands."""
        return (*self.form(node), *map(self.constant, node.input))

    def constant(self, name: str) -> bytes | None:
        """Returns the contents of a constant; None for any other value."""
        tensor = self.constants.get(name)
        maker = self.makers.get(name)
        if tensor is None and maker is not None and maker.op_type == "Constant":
            tensor = next((a.t for a in maker.attribute if a.name == "value"), None)
        if tensor is None:
            return None
        bare = copy_of(tensor)
        bare.ClearField("name")
        bare.ClearField("doc_string")
        return bytes(bare.SerializeToString(deterministic=True))

    def _places(self, node: NodeProto) -> tuple[bool, ...]:
        return tuple(name in self.live for name in node.output)


def _rounds(node: NodeProto) -> bool:
    return node.op_type in _QUANTISE or node.op_type.startswith("QLinear")


def paired(a: Side, b: Side, *, names: bool = True) -> tuple[list[Cut], list[NodeProto]]:
    """Returns the cuts, and the nodes of the first model without a counterpart: a value of the same
    name (if `names` are evidence), a node of the same name, or the next node of the same operator,
    attributes and constants.
    """
    found: dict[int, Cut] = {}
    taken = set[int]()
    for node in a.cuttable if names else ():
        results = a.used(node)
        if all(name in b.makers for name in results):
            other = b.makers[results[0]]
            same = a.form(node) == b.form(other) and b.used(other) == results
            certain = same or not any(map(COUNTED.fullmatch, results))
            found[id(node)] = Cut(node, results, results, other if same else None, certain)
            taken.add(id(other))
    for name in (_node_name, _anything) if names else (_anything,):
        ours = _by((n for n in a.cuttable if id(n) not in found), a, name)
        theirs = _by((n for n in b.cuttable if id(n) not in taken), b, name)
        for key, nodes in ours.items():
            others = theirs.get(key, [])
            if key[1] and len(nodes) == len(others):
                for node, other in zip(nodes, others, strict=True):
                    cut = Cut(node, a.used(node), b.used(other), other, len(nodes) == 1)
                    found[id(node)] = cut
                    taken.add(id(other))
    known = {a.same[key] for key in found}
    known |= {a.same[id(n)] for n in a.cuttable if id(n) in a.smooth}  # their results do not jump
    left = [n for n in a.cuttable if id(n) not in found and a.same[id(n)] not in known]
    return [found[id(n)] for n in a.cuttable if id(n) in found], left


def _node_name(node: NodeProto) -> str:
    return str(node.name)


def _anything(node: NodeProto) -> str:
    return "any"


def _by(
    nodes: Iterable[NodeProto], side: Side, name: Callable[[NodeProto], str]
) -> dict[tuple[object, str], list[NodeProto]]:
    found: dict[tuple[object, str], list[NodeProto]] = {}
    for node in nodes:
        found.setdefault((side.key(node), name(node)), []).append(node)
    return found


def cut_models(
    a: Side, b: Side, cuts: Sequence[Cut], values: Mapping[str, Value]
) -> tuple[ProofModel, ProofModel]:
    """Returns both models with the results of all cuts as inputs (`given_name`), and the values to
    compare as outputs. `values`: the given results of one case, for their types.
    """
    inputs = [
        ValueInfoProto(name=given_name(name), type=_type(values[given_name(name)]))
        for cut in cuts
        for name in cut.results
    ]
    shown = [(cut, list(_shown(cut, a, b))) for cut in cuts]
    outputs = [ValueInfoProto(name=name) for _, names in shown for name, *_ in names]
    made = []
    for side, own in ((a, 0), (b, 1)):
        proto = copy_of(side.proto)
        proto.graph.input.extend(inputs)
        proto.graph.output.extend(outputs)
        nodes = [*_cut_nodes(side, cuts, own), *_compared(shown, own)]
        del proto.graph.node[:]
        proto.graph.node.extend(scheduled(nodes))
        made.append(proof_model(proto))
    return made[0], made[1]


def given_name(result: str) -> str:
    """Returns the name of the input that has a result of the original."""
    return f"{result} of the original"


def _shown(cut: Cut, a: Side, b: Side) -> Iterator[tuple[str, str, str]]:
    """Yields the values to compare at a cut: the name of the comparison, and the value in both
    models. Equal constants are left out.
    """
    title = f"{operator(cut.node)} {cut.results[0]!r}"
    if cut.twin is None:
        for ours, theirs in zip(cut.results, cut.others, strict=True):
            yield f"result {ours!r} of {title}", ours, theirs
        return
    for i, (x, y) in enumerate(zip(_operands(cut.node), _operands(cut.twin))):
        if x and (a.constant(x) is None or a.constant(x) != b.constant(y)):
            yield f"operand {i} of {title}", x, y


def _operands(node: NodeProto) -> list[str]:
    return [*node.input, *sorted(reads(node) - {*node.input})]


def _cut_nodes(side: Side, cuts: Sequence[Cut], own: int) -> Iterator[NodeProto]:
    """Yields the nodes of one model (`own`: its place), reading the given results of every cut. If
    results are compared, the model's own ones get another name.
    """
    given, removed = dict[str, str](), set[int]()
    inside: dict[int, set[str]] = {}  # nodes that compute some results of a cut from others
    for cut in cuts:
        names = cut.others if own else cut.results
        given |= dict(zip(names, map(given_name, cut.results), strict=True))
        node = cut.twin if own else cut.node
        for id_ in side.between(names) if cut.twin is None else ():
            inside.setdefault(id_, set()).update(names)
        if node is None:
            continue
        for repeat in side.repeats(node):
            pairs = zip(repeat.output, node.output)
            given |= {n: given[m] for n, m in pairs if m in given and n in side.live}
            if cut.twin is not None or repeat is not node:
                removed.add(id(repeat))
    for name, source in given.items():
        yield NodeProto(op_type="Identity", input=[source], output=[name])
    for node in side.nodes:
        if id(node) not in removed:
            made = copy_of(node)
            made.output[:] = [_own(n) if n in given else n for n in node.output]
            apart = inside.get(id(node), set())
            made.input[:] = [_own(n) if n in apart else n for n in node.input]
            yield made


def _own(name: str) -> str:
    return f"{name} as computed"


def _compared(
    shown: Sequence[tuple[Cut, Sequence[tuple[str, str, str]]]], own: int
) -> Iterator[NodeProto]:
    """Yields nodes that return the values to compare. Whole numbers are compared as integers, which
    may differ at ties.
    """
    for cut, names in shown:
        for name, *sides in names:
            if cut.twin is not None:
                yield NodeProto(op_type="Identity", input=[sides[own]], output=[name])
            elif cut.node.op_type in WHOLE and domains.is_default(cut.node.domain):
                value = _own(sides[own])
                yield helper.make_node("Cast", [value], [name], to=TensorProto.INT64)
            else:
                yield NodeProto(op_type="Identity", input=[_own(sides[own])], output=[name])


def _type(value: Value) -> TypeProto:
    array = np.asarray(value)
    code = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(code, [None] * array.ndim)
