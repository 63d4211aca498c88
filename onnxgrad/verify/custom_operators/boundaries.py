"""Custom operators that cannot run here, as boundaries of a proof.

Their nodes are cut out of both models: the results become inputs, and the operands become outputs.
Suppose that both models have the same nodes, and that the operands agree for any results. Then, by
induction over the order of the nodes, both models compute the same for every operator that is a
function of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto

from onnxgrad.errors import CannotRun
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import (
    copy_of,
    every_node,
    graphs_of,
    keep,
    model_nodes,
    scheduled,
)
from onnxgrad.verify.changed_region import reads
from onnxgrad.verify.custom_operators.bodies import SHELL, opened
from onnxgrad.verify.custom_operators.result_types import CannotCut, operands, result_types
from onnxgrad.verify.feeds.dims import required_inputs
from onnxgrad.verify.proof_model import TWO_GB, ProofModel, proof_model
from onnxgrad.verify.reference.user_operators import NOT_KNOWN, OWN
from onnxgrad.verify.value_numbers import Numbers

Operator: TypeAlias = tuple[str, str]  # domain, name
_FunctionKey: TypeAlias = tuple[str, str, str]
_RUNTIMES_OWN = "com.microsoft"


class UnknownOperator(CannotRun):
    """onnxruntime does not know these operators of the original. `certain`: onnxruntime's message
    says so; otherwise it is a guess.
    """

    def __init__(
        self, reason: str, operators: Collection[Operator] = (), *, certain: bool = True
    ) -> None:
        super().__init__(reason)
        self.operators, self.certain = operators, certain


def unknown_operators(model: ModelProto, error: CannotRun) -> UnknownOperator | None:
    """Returns an UnknownOperator error if custom operators may be the cause of `error`: those that
    onnxruntime names, or else all in the model. Returns None if the model has none.
    """
    functions = {(f.domain, f.name) for f in model.functions}
    custom = {
        (n.domain, n.op_type): None
        for n in model_nodes(model)
        if not domains.is_default(n.domain) and (n.domain, n.op_type) not in functions
    }
    if NOT_KNOWN in str(error):
        named = [o for o in custom if f"{o[0]}:{o[1]}(" in str(error)]
        return UnknownOperator(str(error), named, certain=True) if named else None
    foreign = [o for o in custom if o not in OWN and not onnx.defs.has(o[1], o[0])]
    suspects = [o for o in foreign if not o[0].startswith(_RUNTIMES_OWN)]
    return UnknownOperator(str(error), suspects, certain=False) if suspects else None


@frozen
class Around:
    """Both models without the custom nodes. `nodes`: the operator of each node, in the original's
    order. `doubt`: why a difference refutes nothing, or empty: the results of a node that the
    second model lacks are free inputs of the original only, and nodes may be paired wrongly.
    """

    original: ProofModel
    candidate: ProofModel
    nodes: tuple[str, ...]
    doubt: str = ""


def around(original: ProofModel, candidate: ProofModel, unknown: Collection[Operator]) -> Around:
    """Returns both models cut at the nodes of these operators. A node of the main graph that runs
    such an operator in a nested graph or a function is cut out as a unit if it is the same in both
    models; otherwise its body is opened.

    Raises CannotCut if the second model has more such nodes, or if the type of a result is unknown.
    """
    if max(m.proto.ByteSize() for m in (original, candidate)) > TWO_GB:
        raise CannotCut("models of over 2 GB are not cut")
    sides = _opened([_Side(m.weights(), unknown) for m in (original, candidate)])
    pairs, doubt = _pairs(*sides)
    types = result_types(sides[0].proto, [a for a, _ in pairs], sides[1].proto)
    taken = {name for side in sides for name in side.names}
    for a, b in pairs:
        operator = domains.full_name(a.domain, a.op_type)
        title = next(name for name in a.output if name)
        given = [_fresh(f"{name} of {operator}", taken) if name else "" for name in a.output]
        shown = {
            i: _fresh(f"{title}: operand {i} of {operator}", taken)
            for i, (p, q) in enumerate(zip(operands(a), operands(b) if b is not None else ()))
            if p and not (sides[0].constant(p) and sides[0].constant(p) == sides[1].constant(q))
        }
        inputs = [
            ValueInfoProto(name=new, type=types[name]) for new, name in zip(given, a.output) if name
        ]
        sides[0].cut(a, given, shown, inputs)
        sides[1].cut(b, given, shown, inputs)
    first, second = (side.finished() for side in sides)
    operators = tuple(sides[0].label(a) for a, _ in pairs if a.domain != SHELL)
    lacks = (f"the second model lacks {a.output[0]!r}" for a, b in pairs if b is None)
    return Around(first, second, operators, next(lacks, doubt))


def _opened(sides: list[_Side]) -> list[_Side]:
    """Returns both models with the bodies opened that differ and run such an operator."""
    while True:
        held = [{s.title(n): n for n in s.custom if s.bodies(n) is not None} for s in sides]
        nodes = [_apart(sides[0], held[0], sides[1], held[1])]
        nodes.append(_apart(sides[1], held[1], sides[0], held[0]))
        if not any(nodes):
            return sides
        shared = held[0].keys() & held[1].keys()
        sides = [
            _Side(opened(s.proto, found, shared), {*s.unknown, (SHELL, "Loop"), (SHELL, "Scan")})
            for s, found in zip(sides, nodes)
        ]


def _apart(
    side: _Side, held: Mapping[str, NodeProto], other: _Side, others: Mapping[str, NodeProto]
) -> list[NodeProto]:
    """Returns the nodes of one model whose bodies differ from those in the other model. The body of
    a Loop or Scan needs a body of as many inputs and results to be compared with.
    """
    found = []
    for title, node in held.items():
        twin = others.get(title)
        if twin is None and node.op_type not in ("Loop", "Scan"):
            found.append(node)
        elif twin is not None and side.bodies(node) == other.bodies(twin):
            found += [node] if side.key(node) != other.key(twin) else []
    return found


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


class _Side:
    """One model while its custom nodes are cut out. Nodes that reach no output are removed."""

    def __init__(self, model: ModelProto, unknown: Collection[Operator]) -> None:
        self.proto = copy_of(model)
        self.functions = {(f.domain, f.name, f.overload): f for f in self.proto.functions}
        self.unknown, self.opaque = unknown, set[_FunctionKey]()
        while (
            more := {k for k, f in self.functions.items() if self._runs_one(f.node)} - self.opaque
        ):
            self.opaque |= more
        graph = self.proto.graph
        live = {v.name for v in graph.output}
        self.nodes: list[NodeProto] = []
        for node in reversed(scheduled(list(graph.node))):
            if not live.isdisjoint(node.output):
                live.update(reads(node))
                self.nodes.append(node)
        self.nodes.reverse()
        self.instead: dict[int, list[NodeProto]] = {}
        self.custom = self._different(node for node in self.nodes if self._runs_one([node]))
        self.constants = {t.name: t for t in graph.initializer}
        self.names = {name for n in every_node(graph.node) for name in n.output} | {
            *self.constants,
            *(v.name for v in graph.input),
        }
        self.open = {v.name for v in required_inputs(graph)}

    def _different(self, nodes: Iterable[NodeProto]) -> list[NodeProto]:
        """Returns the nodes that do not repeat an earlier one. The results of the others become
        copies.
        """
        numbers = Numbers()
        found, firsts = numbers.of(self.proto.graph), dict[object, NodeProto]()
        for node in nodes:
            first = firsts.setdefault((*numbers.key(node, found), len(node.output)), node)
            if first is not node and [*map(bool, first.output)] == [*map(bool, node.output)]:
                self.instead[id(node)] = [
                    NodeProto(op_type="Identity", input=[a], output=[b])
                    for a, b in zip(first.output, node.output)
                    if b
                ]
        return [node for node in firsts.values() if id(node) not in self.instead]

    def _runs_one(self, nodes: Iterable[NodeProto]) -> bool:
        return any(
            (n.domain, n.op_type) in self.unknown
            or (n.domain, n.op_type, n.overload) in self.opaque
            for n in every_node(nodes)
        )

    def title(self, node: NodeProto) -> str:
        """Returns the first result of a node."""
        return str(next(name for name in node.output if name))

    def bodies(self, node: NodeProto) -> object:
        """Returns the kind of a node whose bodies can be opened: an If, a call of a function, a
        Loop or Scan with its numbers of inputs and results. Returns None for another node.
        """
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            versions = domains.versions(self.proto.opset_import)
            own = domains.versions(function.opset_import)
            return "call" if all(versions.get(d, v) == v for d, v in own.items()) else None
        if not domains.is_default(node.domain) or node.op_type not in ("If", "Loop", "Scan"):
            return None
        graphs = graphs_of(node) if node.op_type != "If" else ()
        return (node.op_type, *((len(g.input), len(g.output)) for g in graphs))

    def label(self, node: NodeProto) -> str:
        """Returns the operator of a custom node. If the node runs one inside, both names are in the
        label.
        """
        operator = domains.full_name(node.domain, node.op_type)
        bodies = [node, *(n for f in self.functions.values() for n in f.node)]
        inside = [n for n in every_node(bodies) if (n.domain, n.op_type) in self.unknown]
        if (node.domain, node.op_type) in self.unknown or not inside:
            return operator
        return f"{domains.full_name(inside[0].domain, inside[0].op_type)} in {operator}"

    def key(self, node: NodeProto) -> object:
        """Returns everything that two matching nodes have in common, except their operands."""
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        present = tuple(bool(name) for name in operands(node)), tuple(map(bool, node.output))
        bodies = self._called([node], {})
        return (node.domain, node.op_type, node.overload, *attributes, present, *bodies.values())

    def _called(
        self, nodes: Iterable[NodeProto], found: dict[_FunctionKey, bytes]
    ) -> dict[_FunctionKey, bytes]:
        """Returns the functions that nodes call, directly or through other functions."""
        for node in every_node(nodes):
            key = (node.domain, node.op_type, node.overload)
            if key in self.functions and key not in found:
                found[key] = self.functions[key].SerializeToString(deterministic=True)
                self._called(self.functions[key].node, found)
        return found

    def constant(self, name: str) -> bytes | str:
        """Returns the key of an operand that no node computes: the name of an input, or a
        constant's data.
        """
        if name in self.constants and name not in {v.name for v in self.proto.graph.input}:
            held = self.constants[name]
            return bytes(held.SerializeToString(deterministic=True))
        return name if name in self.open else ""

    def cut(
        self,
        node: NodeProto | None,
        given: Sequence[str],
        shown: Mapping[int, str],
        inputs: Iterable[ValueInfoProto],
    ) -> None:
        """Replaces the results of a node by inputs with these names, and makes its operands
        outputs.
        """
        self.proto.graph.input.extend(inputs)
        if node is None:
            return
        made = [
            NodeProto(op_type="Identity", input=[new], output=[name])
            for new, name in zip(given, node.output)
            if name
        ]
        names = operands(node)
        made += [
            NodeProto(op_type="Identity", input=[names[i]], output=[name])
            for i, name in shown.items()
        ]
        self.instead[id(node)] = made
        self.proto.graph.output.extend(ValueInfoProto(name=name) for name in shown.values())

    def finished(self) -> ProofModel:
        """Returns the model without its custom nodes and the functions that contain some."""
        nodes = [made for n in self.nodes for made in self.instead.get(id(n), [n])]
        copied = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(copied)
        keep(self.proto.functions, lambda f: (f.domain, f.name, f.overload) not in self.opaque)
        return proof_model(self.proto)


def _pairs(a: _Side, b: _Side) -> tuple[list[tuple[NodeProto, NodeProto | None]], str]:
    """Returns each custom node with its counterpart: the node with the same name of a result, with
    the same node name, or the only node of its kind that is left, or else the next one. The
    counterpart is None if the second model lacks it. Also returns the doubt about the pairs.
    """
    left = {id(n): n for n in b.custom}
    found: dict[int, NodeProto] = {}
    for name in _NAMES:
        ours = _by([n for n in a.custom if id(n) not in found], a, name)
        theirs = _by(left.values(), b, name)
        for key, nodes in ours.items():
            others = theirs.get(key, [])
            if len(nodes) == len(others) == 1 and key[1]:
                found[id(nodes[0])] = others[0]
                del left[id(others[0])]
    in_order = len(found)
    ours, theirs = (
        _by(nodes, side, name)
        for nodes, side in (([n for n in a.custom if id(n) not in found], a), ([*left.values()], b))
    )
    for key, nodes in ours.items():
        if len(nodes) == len(theirs.get(key, [])):
            for ours_, other in zip(nodes, theirs[key], strict=True):
                found[id(ours_)] = other
                del left[id(other)]
    doubt = "" if in_order == len(found) else "its custom nodes are paired by their order"
    if left:
        node = next(iter(left.values()))
        operator, name = b.label(node), node.output[0]
        if " in " in operator and any(n.output[:1] == node.output[:1] for n in a.custom):
            raise CannotCut(f"the bodies around {operator} ({name!r}) differ")
        raise CannotCut(f"only the second model has the {operator} of {name!r}")
    return [(n, found.get(id(n))) for n in a.custom], doubt


_NAMES: tuple[Callable[[NodeProto], object], ...] = (
    lambda n: tuple(n.output),
    lambda n: n.name,
    lambda n: "the only one",
)


def _by(
    nodes: Iterable[NodeProto], side: _Side, name: Callable[[NodeProto], object]
) -> dict[tuple[object, object], list[NodeProto]]:
    found: dict[tuple[object, object], list[NodeProto]] = {}
    for node in nodes:
        found.setdefault((side.key(node), name(node)), []).append(node)
    return found
