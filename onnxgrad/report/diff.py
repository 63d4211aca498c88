"""What differs between two models, field by field; nodes are matched by the name of their first output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto

from onnxgrad.ir.stats import operator
from onnxgrad.ir.types import dtype_name, type_from_proto
from onnxgrad.ir.weights import internalize
from onnxgrad.verify.values import elements

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


@dataclass
class ModelDiff:
    """Lines by kind of difference. A kind without lines is equal."""

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

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not any(asdict(self).values())

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        return {"same": self.same, **asdict(self)}


@dataclass(frozen=True)
class _Side:
    """One of the two models: where its external data lies."""

    proto: ModelProto
    folder: Path | None


def compare_models(a: ModelProto, b: ModelProto, folders: tuple[Path | None, Path | None]) -> ModelDiff:
    """Everything in which b differs from a. External data is compared by content, wherever it lies.

    Raises InputError when external data cannot be read.
    """
    found = ModelDiff()
    _header(found, a, b)
    counts = [Counter[str](), Counter[str]()]
    _graph(found, "", _Side(a, folders[0]), _Side(b, folders[1]), a.graph, b.graph, counts)
    functions = [{(f.domain, f.name, f.overload): f for f in m.functions} for m in (a, b)]
    for key in _both(*functions):
        name = "::".join(part for part in key if part)
        x, y = (side.get(key) for side in functions)
        if x is None or y is None:
            found.functions.append(f"{name} {'added' if x is None else 'removed'}")
        else:
            _nodes(found, f"{name}/", _Side(a, folders[0]), _Side(b, folders[1]), x.node, y.node, counts)
            _fields(found, f"function {name}", x, y, skip={"node", "name", "domain", "overload"})
    found.operators = {
        op: (counts[0][op], counts[1][op]) for op in sorted(_both(*counts)) if counts[0][op] != counts[1][op]
    }
    return found


def _both(a: Iterable[Any], b: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys([*a, *b]))


def _header(found: ModelDiff, a: ModelProto, b: ModelProto) -> None:
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        x, y = getattr(a, name), getattr(b, name)
        if x != y:
            found.model.append(f"{name}: {x!r} -> {y!r}")
    opsets, other = ({_domain(o): str(o.version) for o in m.opset_import} for m in (a, b))
    found.model += [f"opset {line}" for line in _mapping(opsets, other, empty="ai.onnx")]
    metadata, other = ({p.key: p.value for p in m.metadata_props} for m in (a, b))
    found.model += [f"metadata {line}" for line in _mapping(metadata, other)]
    done = {"ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"}
    _fields(found, "model", a, b, skip=done | {"opset_import", "metadata_props", "graph", "functions"})


def _mapping(a: Mapping[str, str], b: Mapping[str, str], empty: str = "''") -> list[str]:
    lines = []
    for key in _both(a, b):
        if a.get(key) != b.get(key):
            what = "added" if key not in a else "removed" if key not in b else f"{_short(a[key])} -> {_short(b[key])}"
            lines.append(f"{key or empty}: {what}{f' ({_short(b[key])})' if key not in a else ''}")
    return lines


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _fields(found: ModelDiff, what: str, a: Any, b: Any, skip: set[str]) -> None:
    """Every protobuf field that nothing else compares."""
    for name in (f.name for f in a.DESCRIPTOR.fields):
        if name in skip:
            continue
        x, y = getattr(a, name), getattr(b, name)
        if x != y:
            found.other.append(f"{what}: {name} differs")


def _graph(
    found: ModelDiff, scope: str, left: _Side, right: _Side, a: GraphProto, b: GraphProto, counts: list[Counter[str]]
) -> None:
    for kind, x, y in (("input", a.input, b.input), ("output", a.output, b.output)):
        found.interface += [f"{scope}{line}" for line in _values(kind, x, y)]
    tensors = [{t.name: t for t in g.initializer} for g in (a, b)]
    for name in _both(*tensors):
        change = _tensor(tensors[0].get(name), tensors[1].get(name), left, right)
        if change:
            found.initializers.append(f"{scope}{name}: {change}")
    infos = [{v.name: v for v in g.value_info} for g in (a, b)]
    odd = [n for n in _both(*infos) if infos[0].get(n) != infos[1].get(n)]
    nodes = {name for n in (*a.node, *b.node) for name in n.output}
    stale = [n for n in odd if (n in infos[0] and n in infos[1]) or n not in nodes]
    if stale:
        found.other.append(f"{scope or 'graph: '}{len(stale)} declared types differ, the first of '{stale[0]}'")
    _fields(found, f"graph {scope}".strip(), a, b, skip={"node", "initializer", "input", "output", "value_info"})
    _nodes(found, scope, left, right, a.node, b.node, counts)


def _values(kind: str, a: Iterable[ValueInfoProto], b: Iterable[ValueInfoProto]) -> list[str]:
    x, y = ({v.name: v for v in side} for side in (a, b))
    lines = []
    for name in _both(x, y):
        if name not in x or name not in y:
            lines.append(f"{kind} {name} {'added' if name not in x else 'removed'}")
        elif x[name] != y[name]:
            before, after = (str(type_from_proto(v.type)) for v in (x[name], y[name]))
            lines.append(f"{kind} {name}: " + (f"{before} -> {after}" if before != after else "its annotations differ"))
    if not lines and list(x) != list(y):
        lines.append(f"the {kind}s are in another order")
    return lines


def _nodes(
    found: ModelDiff,
    scope: str,
    left: _Side,
    right: _Side,
    a: Iterable[NodeProto],
    b: Iterable[NodeProto],
    counts: list[Counter[str]],
) -> None:
    sides = [_by_output(nodes) for nodes in (a, b)]
    for side, counter in zip(sides, counts, strict=True):
        counter.update(operator(n) for n in side.values())
    for key in _both(*sides):
        x, y = (side.get(key) for side in sides)
        if x is None or y is None:
            only = x or y
            if only is not None:
                (found.added if x is None else found.removed).append(f"{scope}{key} = {_call(only)}")
                counts[x is None].update(_inner(only))
            continue
        _node(found, f"{scope}{key}", x, y)
        for name, (g, h) in _graph_pairs(x, y).items():
            _graph(found, f"{scope}{key}/{name}/", left, right, g, h, counts)
    common = [[key for key in side if key in sides[0] and key in sides[1]] for side in sides]
    if common[0] != common[1]:
        first = next(key for key, other in zip(*common, strict=True) if key != other)
        found.order.append(f"{scope or 'graph: '}the nodes are in another order, from {first} on")


def _by_output(nodes: Iterable[NodeProto]) -> dict[str, NodeProto]:
    return {next((o for o in n.output if o), f"#{i}"): n for i, n in enumerate(nodes)}


def _call(node: NodeProto) -> str:
    return f"{operator(node)}({', '.join(name or '_' for name in node.input)})"


def _inner(node: NodeProto) -> Counter[str]:
    """The operators of a node's nested graphs."""
    found: Counter[str] = Counter()
    work = [g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]
    while work:
        for inner in work.pop().node:
            found[operator(inner)] += 1
            work += [g for a in inner.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]
    return found


def _graph_pairs(x: NodeProto, y: NodeProto) -> dict[str, tuple[GraphProto, GraphProto]]:
    sides = [{a.name: list(a.graphs) or [a.g] for a in n.attribute if a.type in _GRAPHS} for n in (x, y)]
    return {
        f"{name}[{i}]" if len(sides[0][name]) > 1 else name: pair
        for name in sides[0]
        for i, pair in enumerate(zip(sides[0][name], sides[1].get(name, ()), strict=False))
    }


def _domain(part: NodeProto | OperatorSetIdProto) -> str:
    """Two spellings, one domain."""
    return "" if part.domain == "ai.onnx" else part.domain


def _node(found: ModelDiff, name: str, x: NodeProto, y: NodeProto) -> None:
    if (x.op_type, _domain(x), x.overload) != (y.op_type, _domain(y), y.overload):
        found.replaced.append(f"{name}: {_call(x)} -> {_call(y)}")
        return
    if list(x.input) != list(y.input):
        found.rewired.append(f"{name}: {_call(x)} -> {_call(y)}")
    attrs = [{a.name: a for a in n.attribute} for n in (x, y)]
    for attr in _both(*attrs):
        p, q = attrs[0].get(attr), attrs[1].get(attr)
        if p != q and not (p is not None and q is not None and p.type == q.type and p.type in _GRAPHS):
            found.attributes.append(f"{name}: {operator(x)} {attr} {_change(p, q)}")
    if sorted((p.key, p.value) for p in x.metadata_props) != sorted((p.key, p.value) for p in y.metadata_props):
        found.node_metadata.append(name)
    done = {"input", "attribute", "metadata_props", "op_type", "domain", "overload"}
    _fields(found, f"node {name}", x, y, skip=done)


def _change(p: AttributeProto | None, q: AttributeProto | None) -> str:
    return "added" if p is None else "removed" if q is None else f"{_attribute(p)} -> {_attribute(q)}"


def _attribute(a: AttributeProto) -> str:
    if a.ref_attr_name:
        return f"@{a.ref_attr_name}"
    if a.type == AttributeProto.TENSOR:
        return f"{dtype_name(a.t.data_type)}{list(a.t.dims)}"
    fields = {AttributeProto.INT: "i", AttributeProto.FLOAT: "f", AttributeProto.INTS: "ints"}
    fields |= {AttributeProto.FLOATS: "floats", AttributeProto.STRING: "s"}
    value = getattr(a, fields[a.type]) if a.type in fields else AttributeProto.AttributeType.Name(a.type).lower()
    return _short(str(list(value) if a.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value))


def _tensor(x: TensorProto | None, y: TensorProto | None, left: _Side, right: _Side) -> str:
    """What happened to an initializer; empty when its type and content are the same."""
    if x is None:
        return f"added ({_kind(y)})"
    if y is None:
        return f"removed ({_kind(x)})"
    if x == y and x.data_location != TensorProto.EXTERNAL:
        return ""
    if _kind(x) != _kind(y):
        return f"{_kind(x)} -> {_kind(y)}"
    a, b = _content(x, left), _content(y, right)
    if a != b:
        return "other values"
    return "" if x.doc_string == y.doc_string else "its doc_string differs"


def _kind(tensor: TensorProto | None) -> str:
    return "" if tensor is None else f"{dtype_name(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"


def _content(tensor: TensorProto, side: _Side) -> bytes:
    array = elements(internalize(tensor, side.folder) if tensor.data_location == TensorProto.EXTERNAL else tensor)
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
