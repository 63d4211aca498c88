"""Whether two exports have one architecture, and which of their initializers are at one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.origins import weight_in
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.jobs.rebasing.outline import strip_like
from onnxgrad.wording import counted


def same_places(
    original: ModelProto, new: ModelProto, *, outputs_in_order: bool = True
) -> dict[str, list[str]]:
    """Returns the initializers of `new` that stand where each of `original` is read, by its name.
    Both have the same nodes in the same order, whatever their names, and outputs in the same order
    unless `outputs_in_order` is off. Raises InputError for the first difference.
    """
    a, b = (domains.versions(m.opset_import) for m in (original, new))
    for domain in dict.fromkeys((*a, *b)):
        if a.get(domain) != b.get(domain):
            named = f"domain '{domain}'" if domain else "the default domain"
            raise _another(f"{named} has opset {b.get(domain)}, the original {a.get(domain)}")
    functions = [{_key(f): _bare(f) for f in m.functions} for m in (original, new)]
    if functions[0] != functions[1]:
        raise _another("a local function differs")
    walk = _Walk(outputs_in_order)
    walk.graph(original.graph, new.graph, "the graph")
    return {name: list(found) for name, found in walk.initializers.items()}


def are_equal(original: ModelProto, new: ModelProto) -> bool:
    """Whether the graphs are equal up to the values of weights, their names included, so that `new`
    is valid if `original` is. This is faster than to compare what reads what.
    """
    a, b = original.graph, new.graph
    return bool(
        original.ir_version == new.ir_version
        and [t.name for t in a.initializer] == [t.name for t in b.initializer]
        and len(a.node) == len(b.node)
        and original.opset_import == new.opset_import
        and original.functions == new.functions
        and a.sparse_initializer == b.sparse_initializer
        and a.input == b.input
        and a.output == b.output
        and _have_equal_nodes(a, b)
    )


def _have_equal_nodes(outline: GraphProto, graph: GraphProto) -> bool:
    made = NodeProto()  # one for all nodes: this compares whole messages, and reads no field
    for x, y in zip(outline.node, graph.node, strict=True):
        made.CopyFrom(y)
        made.ClearField("metadata_props")
        made.ClearField("doc_string")
        if made == x:
            continue
        if x.op_type == "Constant":  # most are weights, and those of most exporters are raw data
            for attribute in made.attribute:
                if attribute.HasField("t"):
                    attribute.t.ClearField("raw_data")
            if made == x:
                continue
            made.CopyFrom(y)
        strip_like(made, x)
        if made != x:
            return False
    return True


def _another(what: str) -> InputError:
    return InputError(
        f"the new weights belong to another architecture: {what}; if commands changed the original "
        "before it was optimised (join, edit, preprocess, ...), run them on the new export, or "
        "optimise it instead"
    )


def _key(f: FunctionProto) -> tuple[str, str, str]:
    return f.domain, f.name, f.overload


def _bare(f: FunctionProto) -> bytes:
    made = copy_of(f)
    made.ClearField("doc_string")
    made.ClearField("metadata_props")
    for node in made.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    data: bytes = made.SerializeToString(deterministic=True)
    return data


class _Walk:
    """Walks two graphs at once. `values`: names in the new one by names in the original."""

    def __init__(self, outputs_in_order: bool) -> None:
        self._outputs_in_order = outputs_in_order
        self.values: dict[str, str] = {}
        self.initializers: dict[str, dict[str, None]] = {}
        self._known: list[tuple[set[str], set[str]]] = []

    def graph(self, a: GraphProto, b: GraphProto, where: str) -> None:
        self._known.append(({t.name for t in a.initializer}, {t.name for t in b.initializer}))
        inputs = _same_types(_values(a, "input"), _values(b, "input"), "input", where)
        ends, others = _values(a, "output"), _values(b, "output")
        if not self._outputs_in_order and len(self._known) == 1:
            ends, others = _by_node(a, ends), _by_node(b, others)
        outputs = _same_types(ends, others, "output", where)
        self.values |= inputs
        if any(x != y for x, y in zip_longest(a.sparse_initializer, b.sparse_initializer)):
            raise _another("a sparse initializer differs")
        for i, (x, y) in enumerate(zip_longest(a.node, b.node)):
            if x is None or y is None:
                raise _another(
                    f"{where} has {counted(len(b.node), 'node')}, the original {len(a.node)}"
                )
            self._node(x, y, f"node {i} of {where}, {y.op_type} '{y.name}'")
        for p, q in outputs.items():
            self._read(p, q, f"output '{q}'")
        self._known.pop()

    def _node(self, a: NodeProto, b: NodeProto, where: str) -> None:
        kinds = [(domains.canonical(n.domain), n.op_type, n.overload) for n in (a, b)]
        if kinds[0] != kinds[1]:
            raise _another(f"{where} is {a.op_type} '{a.name}' in the original")
        if len(a.input) != len(b.input) or len(a.output) != len(b.output):
            raise _another(f"{where} has another number of operands or results")
        for x, y in zip(a.input, b.input, strict=True):
            self._read(x, y, where)
        mine, theirs = ({t.name: t for t in n.attribute} for n in (a, b))
        if mine.keys() != theirs.keys():
            differ = ", ".join(sorted(mine.keys() ^ theirs.keys()))
            raise _another(f"{where}: only one of the two has {differ}")
        if weight_in(a) is not None and weight_in(b) is not None:
            self.initializers.setdefault(a.output[0], {})[b.output[0]] = None
            mine.pop("value")
        for name, attribute in mine.items():
            self._attribute(attribute, theirs[name], where)
        for x, y in zip(a.output, b.output, strict=True):
            if bool(x) != bool(y):
                raise _another(f"{where} has another result")
            self.values[x] = y

    def _attribute(self, a: AttributeProto, b: AttributeProto, where: str) -> None:
        graphs = [[x.g] if x.HasField("g") else list(x.graphs) for x in (a, b)]
        if graphs[0] or graphs[1]:
            if len(graphs[0]) != len(graphs[1]):
                raise _another(f"{where}: '{a.name}' has other graphs")
            for x, y in zip(*graphs, strict=True):
                self.graph(x, y, f"'{a.name}' of {where}")
        elif a != b and _value(a) != _value(b):
            raise _another(f"{where}: '{a.name}' has another value")

    def _read(self, x: str, y: str, where: str) -> None:
        weights = any(x in known for known, _ in self._known) and x not in self.values
        if weights and any(y in known for _, known in self._known):
            self.initializers.setdefault(x, {})[y] = None
        elif x != y if not x else self.values.get(x) != y:
            raise _another(f"{where} reads '{y}' where the original reads '{x}'")


def _by_node(graph: GraphProto, values: Sequence[ValueInfoProto]) -> list[ValueInfoProto]:
    """Returns outputs in the order of the nodes that compute them."""
    places = {name: i for i, name in enumerate(n for node in graph.node for n in node.output)}
    return sorted(values, key=lambda v: places.get(v.name, -1))


def _same_types(
    mine: Sequence[ValueInfoProto], theirs: Sequence[ValueInfoProto], kind: str, where: str
) -> dict[str, str]:
    """Returns the names of inputs or outputs by those of the original. Raises InputError."""
    if len(mine) != len(theirs):
        raise _another(f"{where} has {counted(len(theirs), kind)}, the original {len(mine)}")
    for x, y in zip(mine, theirs, strict=True):
        if not _fit(x, y):
            raise _another(f"{kind} '{y.name}' has another type than '{x.name}'")
    return {x.name: y.name for x, y in zip(mine, theirs, strict=True)}


def _values(graph: GraphProto, kind: str) -> list[ValueInfoProto]:
    """Inputs or outputs. A file may list initializers among its inputs."""
    constants = {t.name for t in graph.initializer} if kind == "input" else set()
    return [v for v in getattr(graph, kind) if v.name not in constants]


def _fit(a: ValueInfoProto, b: ValueInfoProto) -> bool:
    """Whether two declarations do not contradict each other; symbols may have other names."""
    if a.type.WhichOneof("value") != b.type.WhichOneof("value"):
        return not (a.HasField("type") and b.HasField("type"))
    x, y = a.type.tensor_type, b.type.tensor_type
    if x.elem_type != y.elem_type or not (x.HasField("shape") and y.HasField("shape")):
        return x.elem_type == y.elem_type
    pairs: Iterator[tuple[Any, Any]] = zip_longest(x.shape.dim, y.shape.dim)
    return all(
        p is not None
        and q is not None
        and not (p.HasField("dim_value") and q.HasField("dim_value") and p.dim_value != q.dim_value)
        for p, q in pairs
    )


def _value(a: AttributeProto) -> bytes:
    made = copy_of(a)
    made.ClearField("doc_string")
    for tensor in (*([made.t] if made.HasField("t") else []), *made.tensors):
        for name in ("name", "doc_string", "metadata_props"):
            tensor.ClearField(name)
    data: bytes = made.SerializeToString(deterministic=True)
    return data


def listed(names: Iterable[str], most: int = 10) -> str:
    """The first names, and how many there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(f"'{n}'" for n in found[:most]) + more
