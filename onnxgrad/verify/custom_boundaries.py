"""Custom operators that cannot run here, as boundaries of a proof.

Their nodes are cut out of both models: the results become inputs, and the operands become outputs.
Suppose that both models have the same nodes, and that the operands agree for any results. Then, by
induction over the order of the nodes, both models compute the same for every operator that is a
function of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxgrad.errors import CannotRun, OnnxgradError
from onnxgrad.ir import domains
from onnxgrad.ir.load import load
from onnxgrad.ir.protobufs import copy_of, every_node, keep, model_nodes, scheduled
from onnxgrad.ir.types import type_to_proto
from onnxgrad.verify.changed_region import reads
from onnxgrad.verify.feeds.dims import required_inputs
from onnxgrad.verify.proof_model import TWO_GB, ProofModel, proof_model
from onnxgrad.verify.reference.user_operators import NOT_KNOWN, OWN
from onnxgrad.verify.value_numbers import Numbers

Operator: TypeAlias = tuple[str, str]  # domain, name
_FunctionKey: TypeAlias = tuple[str, str, str]
_RUNTIMES_OWN = "com.microsoft"
_FOLLOWED = 8  # values of the same type after a result that are searched for its type


class UnknownOperator(CannotRun):
    """onnxruntime does not know these operators of the original. `certain`: onnxruntime's message
    says so; otherwise it is a guess.
    """

    def __init__(
        self, reason: str, operators: Collection[Operator] = (), *, certain: bool = True
    ) -> None:
        super().__init__(reason)
        self.operators, self.certain = operators, certain


class CannotCut(Exception):
    """The models cannot be cut at the operators; the message says why."""


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


@dataclass(frozen=True)
class Around:
    """Both models without the custom nodes. `nodes`: the operator of each node, in the original's
    order. `unmatched`: a result of a node that the second model lacks, or empty. The results of
    that node are free inputs of the original only, so a difference refutes nothing.
    """

    original: ProofModel
    candidate: ProofModel
    nodes: tuple[str, ...]
    unmatched: str = ""


def around(original: ProofModel, candidate: ProofModel, unknown: Collection[Operator]) -> Around:
    """Returns both models cut at the nodes of these operators. A node of the main graph that runs
    such an operator in a nested graph or a function is cut out as a unit.

    Raises CannotCut if the second model has more such nodes, or if the type of a result is unknown.
    """
    if max(m.proto.ByteSize() for m in (original, candidate)) > TWO_GB:
        raise CannotCut("models of over 2 GB are not cut")
    sides = [_Side(model, unknown) for model in (original, candidate)]
    pairs = _pairs(*sides)
    types = _result_types(original.proto, [a for a, _ in pairs], candidate.proto)
    taken = {name for side in sides for name in side.names}
    for a, b in pairs:
        operator = domains.full_name(a.domain, a.op_type)
        title = next(name for name in a.output if name)
        given = [_fresh(f"{name} of {operator}", taken) if name else "" for name in a.output]
        shown = {
            i: _fresh(f"{title}: operand {i} of {operator}", taken)
            for i, (p, q) in enumerate(zip(_operands(a), _operands(b) if b is not None else ()))
            if p and not (sides[0].constant(p) and sides[0].constant(p) == sides[1].constant(q))
        }
        inputs = [
            ValueInfoProto(name=new, type=types[name]) for new, name in zip(given, a.output) if name
        ]
        sides[0].cut(a, given, shown, inputs)
        sides[1].cut(b, given, shown, inputs)
    first, second = (side.finished() for side in sides)
    operators = tuple(sides[0].label(a) for a, _ in pairs)
    return Around(first, second, operators, next((a.output[0] for a, b in pairs if b is None), ""))


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _operands(node: NodeProto) -> list[str]:
    """Returns the operands of a node, then the values that its nested graphs capture."""
    return [*node.input, *sorted(reads(node) - {*node.input})]


class _Side:
    """One model while its custom nodes are cut out. Nodes that reach no output are removed."""

    def __init__(self, model: ProofModel, unknown: Collection[Operator]) -> None:
        self.proto = copy_of(model.weights())
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
            *self.constants, *(v.name for v in graph.input)
        }  # fmt: skip
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
        present = tuple(bool(name) for name in _operands(node)), tuple(map(bool, node.output))
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
        operands = _operands(node)
        made += [
            NodeProto(op_type="Identity", input=[operands[i]], output=[name])
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


def _pairs(a: _Side, b: _Side) -> list[tuple[NodeProto, NodeProto | None]]:
    """Returns each custom node with its counterpart: the node with the same name of a result, with
    the same node name, or the only node of its kind that is left. The counterpart is None if the
    second model lacks it.
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
    if left:
        node = next(iter(left.values()))
        operator, name = b.label(node), node.output[0]
        if " in " in operator and any(n.output[:1] == node.output[:1] for n in a.custom):
            raise CannotCut(f"the bodies around {operator} ({name!r}) differ")
        raise CannotCut(f"only the second model has the {operator} of {name!r}")
    return [(n, found.get(id(n))) for n in a.custom]


_NAMES: tuple[Callable[[NodeProto], object], ...] = (
    lambda n: tuple(n.output), lambda n: n.name, lambda n: "the only one",
)  # fmt: skip


def _by(
    nodes: Iterable[NodeProto], side: _Side, name: Callable[[NodeProto], object]
) -> dict[tuple[object, object], list[NodeProto]]:
    found: dict[tuple[object, object], list[NodeProto]] = {}
    for node in nodes:
        found.setdefault((side.key(node), name(node)), []).append(node)
    return found


def _result_types(
    model: ModelProto, nodes: Sequence[NodeProto], other: ModelProto
) -> dict[str, TypeProto]:
    """Returns the type of each custom result: the declared type, or else the type of an operand
    with an element type that the result's readers accept. The proof uses values of these types. A
    wrong guess does not run, so it proves nothing.
    """
    found = {
        v.name: v.type
        for m in (other, model)
        for v in (*m.graph.value_info, *m.graph.output)
        if v.type.WhichOneof("value")
    }
    while left := [n for n in nodes if any(name and name not in found for name in n.output)]:
        guessed: dict[str, TypeProto] = {}
        for between in (False, True):
            types = _inferred(model, found, nodes, between=between) | found
            guessed |= {
                name: kind
                for n in left
                for name in n.output
                if name and name not in found
                for kind in [_as_read(model, name, [types[i] for i in _operands(n) if i in types])]
                if kind is not None
            }
            # later unknown types may follow from earlier guesses
            if sized := {name: kind for name, kind in guessed.items() if _is_sized(kind)}:
                guessed = sized
                break
        if not guessed:
            raise CannotCut(f"the type of {left[0].output[0]!r} is neither declared nor known")
        found |= guessed
    return found


def _inferred(
    model: ModelProto, more: Mapping[str, TypeProto], nodes: Iterable[NodeProto], *, between: bool
) -> dict[str, TypeProto]:
    """Returns the known types of the values of the main graph if the custom results become inputs
    of these types. `between`: the first declared values after values of unknown type become inputs
    as well. Sizes declared for other values are not reliable, but here sizes only choose the feeds.
    """
    typed = copy_of(model)
    graph = typed.graph
    custom = {name for n in nodes for name in n.output if name}
    behind = {*custom}
    inputs: dict[str, ValueInfoProto] = {}
    left = []
    for node in scheduled(list(graph.node)):
        names = {name for name in node.output if name}
        if behind.isdisjoint(reads(node) | names):
            left.append(node)
        elif names <= more.keys() and (between or names <= custom):
            inputs |= {n: ValueInfoProto(name=n, type=more[n]) for n in sorted(names)}
            behind -= names
        else:
            behind |= names
            left.append(node)
    copied = [copy_of(n) for n in left]
    del graph.node[:]
    graph.node.extend(copied)
    keep(graph.value_info, lambda v: v.name not in inputs)
    graph.input.extend(inputs.values())
    declared = {v.name for v in (*graph.value_info, *graph.output, *graph.input)}
    graph.value_info.extend(
        ValueInfoProto(name=name, type=kind) for name, kind in more.items() if name not in declared
    )
    try:
        values = load(typed).main.vars()
    except OnnxgradError as error:
        raise CannotCut(f"the types of its values are not known ({error})") from error
    made = {v.name: type_to_proto(v.type) for v in values}
    return {name: kind for name, kind in made.items() if kind.WhichOneof("value")}


def _is_sized(kind: TypeProto) -> bool:
    shape = kind.tensor_type.shape
    return kind.tensor_type.HasField("shape") and all(d.WhichOneof("value") for d in shape.dim)


def _as_read(model: ModelProto, name: str, operands: Sequence[TypeProto]) -> TypeProto | None:
    """Returns the first type that all readers of a value accept: the type of an operand, or the
    first operand's shape with a common element type. If no type fits, returns the type of the first
    operand, and None if there is none.
    """
    taken = list(_accepted(model, name))
    guesses = [*operands]
    for code in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL):
        for kind in operands[:1]:
            made = copy_of(kind)
            made.tensor_type.elem_type = code
            guesses.append(made)
    good = (k for k in guesses if all(_text(k) in kinds for kinds in taken))
    return next(good, operands[0] if operands else None)


def _accepted(model: ModelProto, name: str) -> Iterator[Collection[str]]:
    """Yields the types that each reader of a value accepts, if onnx knows the reader. Includes the
    readers of results that must have the same type, and constants among the operands that must have
    it too.
    """
    weights = {t.name: TypeProto(tensor_type=TypeProto.Tensor(elem_type=t.data_type))
               for t in model.graph.initializer}  # fmt: skip
    versions, alike = domains.versions(model.opset_import), [name]
    for value in alike:  # the list grows in the loop
        for node in model.graph.node:
            domain = domains.canonical(node.domain)
            if value not in node.input or not onnx.defs.has(node.op_type, domain):
                continue
            schema = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
            slots = [p.type_str for p in schema.inputs]
            slots += slots[-1:] * (len(node.input) - len(slots))
            mine = slots[[*node.input].index(value)]
            allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
            yield allowed.get(mine, (mine,))
            beside = [n for n, slot in zip(node.input, slots) if slot == mine and n in weights]
            yield from ((_text(weights[n]),) for n in beside)
            results = [n for n, p in zip(node.output, schema.outputs) if p.type_str == mine]
            alike += [n for n in results if n not in alike and len(alike) < _FOLLOWED]


def _text(kind: TypeProto) -> str:
    """Returns a type as onnx's schemas spell it; empty for anything but a tensor."""
    if not kind.HasField("tensor_type"):
        return ""
    name = TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()
    return f"tensor({name})"
