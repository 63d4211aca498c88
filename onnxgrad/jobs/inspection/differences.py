"""Every field in which two models differ; nodes match by the name of their first output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)

from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.load import ModelLike, proto_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.protobufs import elements, every_node, operator
from onnxgrad.ir.storage.external_data import internalize
from onnxgrad.ir.types import dtype_name, type_from_proto
from onnxgrad.results import WithPage
from onnxgrad.wording import counted, shape_text

_Entry = TypeVar("_Entry")
# the field of an attribute that holds its value, by type
_FIELDS = {
    AttributeProto.INT: "i",
    AttributeProto.FLOAT: "f",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOATS: "floats",
    AttributeProto.STRING: "s",
}
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_HEADER = (
    "ir_version",
    "producer_name",
    "producer_version",
    "domain",
    "model_version",
    "doc_string",
)
Folders = tuple[Path | None, Path | None]  # of the two models' external data


@dataclass
class Comparison:
    """The differences found so far: lines by kind (the fields of `Diff`), and the counts of
    operators on either side.
    """

    folders: Folders
    lines: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: tuple[Counter[str], Counter[str]] = field(
        default_factory=lambda: (Counter(), Counter())
    )

    def models(self, a: ModelProto, b: ModelProto) -> None:
        """Records everything in which b differs from a. External data is compared by content,
        wherever it is stored.

        Raises InputError if external data cannot be read.
        """
        self._header(a, b)
        self._graphs("", a.graph, b.graph)
        functions = [{(f.domain, f.name, f.overload): f for f in m.functions} for m in (a, b)]
        for key in _both(*functions):
            name = "::".join(part for part in key if part)
            x, y = (side.get(key) for side in functions)
            if x is None or y is None:
                self.lines["functions"].append(f"{name} {'added' if x is None else 'removed'}")
            else:
                self._nodes(f"{name}/", x.node, y.node)
                self._fields(f"function {name}", x, y, skip={"node", "name", "domain", "overload"})

    def operators(self) -> dict[str, tuple[int, int]]:
        """Returns the counts in a and in b of each operator whose counts differ."""
        a, b = self.counts
        return {name: (a[name], b[name]) for name in sorted(_both(a, b)) if a[name] != b[name]}

    def _header(self, a: ModelProto, b: ModelProto) -> None:
        found = self.lines["model"]
        pairs = ((name, getattr(a, name), getattr(b, name)) for name in _HEADER)
        found += [f"{name}: {x!r} -> {y!r}" for name, x, y in pairs if x != y]
        opsets, other = ({_domain(o): str(o.version) for o in m.opset_import} for m in (a, b))
        found += [f"opset {line}" for line in _mapping(opsets, other, empty="ai.onnx")]
        metadata, other = ({p.key: p.value for p in m.metadata_props} for m in (a, b))
        found += [f"metadata {line}" for line in _mapping(metadata, other)]
        self._fields(
            "model", a, b, skip={*_HEADER, "opset_import", "metadata_props", "graph", "functions"}
        )

    def _fields(self, what: str, a: Any, b: Any, skip: set[str]) -> None:
        """Compares every protobuf field that nothing else compares."""
        for name in (f.name for f in a.DESCRIPTOR.fields):
            if name not in skip and getattr(a, name) != getattr(b, name):
                self.lines["other"].append(f"{what}: {name} differs")

    def _graphs(self, scope: str, a: GraphProto, b: GraphProto) -> None:
        for kind, x, y in (("input", a.input, b.input), ("output", a.output, b.output)):
            self.lines["interface"] += [f"{scope}{line}" for line in _values(kind, x, y)]
        tensors = [{t.name: t for t in g.initializer} for g in (a, b)]
        for name in _both(*tensors):
            change = _tensor(tensors[0].get(name), tensors[1].get(name), self.folders)
            if change:
                self.lines["initializers"].append(f"{scope}{name}: {change}")
        infos = [{v.name: v for v in g.value_info} for g in (a, b)]
        odd = [n for n in _both(*infos) if infos[0].get(n) != infos[1].get(n)]
        nodes = {name for n in (*a.node, *b.node) for name in n.output}
        stale = [n for n in odd if (n in infos[0] and n in infos[1]) or n not in nodes]
        if stale:
            where = scope or "graph: "
            self.lines["other"].append(
                f"{where}{counted(len(stale), 'declared type')} changed, the first of '{stale[0]}'"
            )
        done = {"node", "initializer", "input", "output", "value_info"}
        self._fields(f"graph {scope}".strip(), a, b, skip=done)
        self._nodes(scope, a.node, b.node)

    def _nodes(self, scope: str, a: Iterable[NodeProto], b: Iterable[NodeProto]) -> None:
        sides = [_by_output(nodes) for nodes in (a, b)]
        for side, counter in zip(sides, self.counts, strict=True):
            counter.update(operator(n) for n in side.values())
        for key in _both(*sides):
            x, y = (side.get(key) for side in sides)
            if x is not None and y is not None:
                self._node(f"{scope}{key}", x, y)
            elif only := x or y:
                self.lines["added" if x is None else "removed"].append(
                    f"{scope}{key} = {_call(only)}"
                )
                nested = (n for g in _nested(only) for n in every_node(g.node))
                self.counts[x is None].update(operator(n) for n in nested)
        common = [[key for key in side if key in sides[0] and key in sides[1]] for side in sides]
        if common[0] != common[1]:
            first = next(key for key, other in zip(*common, strict=True) if key != other)
            self.lines["order"].append(
                f"{scope or 'graph: '}the nodes are in another order, from {first} on"
            )

    def _node(self, name: str, x: NodeProto, y: NodeProto) -> None:
        if (x.op_type, _domain(x), x.overload) != (y.op_type, _domain(y), y.overload):
            self.lines["replaced"].append(f"{name}: {_call(x)} -> {_call(y)}")
        else:
            self._same_operator(name, x, y)
        before, after = (
            {a.name: list(a.graphs) or [a.g] for a in n.attribute if a.type in _GRAPHS}
            for n in (x, y)
        )
        for attribute, graphs in before.items():
            for i, (g, h) in enumerate(zip(graphs, after.get(attribute, ()), strict=False)):
                place = f"{attribute}[{i}]" if len(graphs) > 1 else attribute
                self._graphs(f"{name}/{place}/", g, h)

    def _same_operator(self, name: str, x: NodeProto, y: NodeProto) -> None:
        if list(x.input) != list(y.input):
            self.lines["rewired"].append(f"{name}: {_call(x)} -> {_call(y)}")
        before, after = ({a.name: a for a in n.attribute} for n in (x, y))
        self.lines["attributes"] += [
            f"{name}: {operator(x)} {attr}{word}" for attr, word in _changed(before, after, _change)
        ]
        if sorted((p.key, p.value) for p in x.metadata_props) != sorted(
            (p.key, p.value) for p in y.metadata_props
        ):
            self.lines["node_metadata"].append(name)
        done = {"input", "attribute", "metadata_props", "op_type", "domain", "overload"}
        self._fields(f"node {name}", x, y, skip=done)


def _both(a: Iterable[Any], b: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys([*a, *b]))


def _changed(
    a: Mapping[str, _Entry], b: Mapping[str, _Entry], change: Callable[[_Entry, _Entry], str]
) -> Iterator[tuple[str, str]]:
    """Yields the keys whose entries differ, each with " added", " removed" or the change; an empty
    change means equal.
    """
    for key in _both(a, b):
        word = " added" if key not in a else " removed" if key not in b else change(a[key], b[key])
        if word:
            yield key, word


def _mapping(a: Mapping[str, str], b: Mapping[str, str], empty: str = "''") -> list[str]:
    def change(x: str, y: str) -> str:
        return "" if x == y else f" {_short(x)} -> {_short(y)}"

    return [
        f"{key or empty}:{word}{f' ({_short(b[key])})' if key not in a else ''}"
        for key, word in _changed(a, b, change)
    ]


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _values(kind: str, a: Iterable[ValueInfoProto], b: Iterable[ValueInfoProto]) -> list[str]:
    def change(v: ValueInfoProto, w: ValueInfoProto) -> str:
        before, after = (str(type_from_proto(value.type)) for value in (v, w))
        other = f": {before} -> {after}" if before != after else ": its annotations differ"
        return "" if v == w else other

    x, y = ({v.name: v for v in side} for side in (a, b))
    lines = [f"{kind} {name}{word}" for name, word in _changed(x, y, change)]
    moved = [f"the {kind}s are in another order"] if list(x) != list(y) else []
    return lines or moved


def _by_output(nodes: Iterable[NodeProto]) -> dict[str, NodeProto]:
    return {next((o for o in n.output if o), f"#{i}"): n for i, n in enumerate(nodes)}


def _call(node: NodeProto) -> str:
    return f"{operator(node)}({', '.join(name or '_' for name in node.input)})"


def _nested(node: NodeProto) -> list[GraphProto]:
    return [
        g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)
    ]


def _domain(part: NodeProto | OperatorSetIdProto) -> str:
    return domains.canonical(part.domain)


def _change(p: AttributeProto, q: AttributeProto) -> str:
    if p == q or (p.type == q.type and p.type in _GRAPHS):
        return ""
    return f" {_attribute(p)} -> {_attribute(q)}"


def _attribute(a: AttributeProto) -> str:
    if a.ref_attr_name:
        return f"@{a.ref_attr_name}"
    if a.type == AttributeProto.TENSOR:
        return f"{dtype_name(a.t.data_type)}{shape_text(a.t.dims)}"
    if a.type not in _FIELDS:
        return str(AttributeProto.AttributeType.Name(a.type)).lower()
    value = getattr(a, _FIELDS[a.type])
    listed = a.type in (AttributeProto.INTS, AttributeProto.FLOATS)
    return _short(str(list(value) if listed else value))


def _tensor(x: TensorProto | None, y: TensorProto | None, folders: Folders) -> str:
    """Returns the change of an initializer; empty if type and content are equal."""
    if x is None:
        return f"added ({_kind(y)})"
    if y is None:
        return f"removed ({_kind(x)})"
    if x == y and x.data_location != TensorProto.EXTERNAL:
        return ""
    if _kind(x) != _kind(y):
        return f"{_kind(x)} -> {_kind(y)}"
    a, b = _content(x, folders[0]), _content(y, folders[1])
    if a != b:
        return "other values"
    return "" if x.doc_string == y.doc_string else "its doc_string differs"


def _kind(tensor: TensorProto | None) -> str:
    return (
        ""
        if tensor is None
        else f"{dtype_name(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"
    )


def _content(tensor: TensorProto, folder: Path | None) -> bytes:
    array = elements(
        internalize(tensor, folder) if tensor.data_location == TensorProto.EXTERNAL else tensor
    )
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()


@frozen
class Diff(WithPage):
    """Lines by kind of difference, and `operators` with their counts before and after. Empty fields
    mean equal.
    """

    json_keys = (
        "same model interface operators added removed replaced rewired attributes node_metadata "
        "order initializers functions other"
    )

    model: list[str] = field(default_factory=list)
    interface: list[str] = field(default_factory=list)
    operators: dict[str, tuple[int, int]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    rewired: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    node_metadata: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    initializers: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    # the compared models, for the page
    models: tuple[ModelLike, ModelLike] | None = field(default=None, repr=False, compare=False)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not any(getattr(self, f.name) for f in fields(self) if f.name != "models")


def diff(a: ModelLike, b: ModelLike) -> Diff:
    """Returns the differences between two models, as `onnxgrad.diff` describes them."""
    a, b = settled(a), settled(b)
    (x, folder_x), (y, folder_y) = proto_of(a), proto_of(b)
    found = Comparison((folder_x, folder_y))
    found.models(x, y)
    return Diff(operators=found.operators(), **found.lines, models=(a, b))
