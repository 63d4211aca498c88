"""Checks of a model before a program is built from it: calls, attributes, names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from onnxgrad.errors import InputError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.preflight.tensors import MOST_AXES, check_declared, check_sparse, check_tensor
from onnxgrad.ir.protobufs import every_node
from onnxgrad.ir.topological_order import callees_first

_A = AttributeProto
# protobuf reads a hundred levels: each nested graph takes three, and messages around it some more
MOST_NESTED = 24
_INT32 = 1 << 31
# attributes of window operators and the like that are at least 1, and fit into 32 bits
_POSITIVE = [
    "strides",
    "dilations",
    "kernel_shape",
    "group",
    "blocksize",
    "num_groups",
    "hidden_size",
    "num_outputs",
    "num_scan_inputs",
]
_OWN = "__"  # prefix of other tools' attributes, which onnx and onnxruntime accept
# attributes that refer to axes: beyond the axes of any tensor, onnx's inference wraps around and
# reads out of bounds
_AXES = frozenset({"axis", "axes", "perm", "batch_dims", "batch_axis", "time_axis"})
# the least value, and the first that is too large
_RANGED: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(_POSITIVE, (1, _INT32)),
    **dict.fromkeys(_AXES, (-MOST_AXES - 1, MOST_AXES + 1)),
}
# looked up once, not for every attribute of a model
_TENSOR, _SPARSE_TENSOR, _GRAPH = _A.TENSOR, _A.SPARSE_TENSOR, _A.GRAPH
_LARGE = frozenset({_TENSOR, _SPARSE_TENSOR, _GRAPH, _A.GRAPHS})


class _Reader:
    """Walks a model; `where` is its name in messages."""

    def __init__(self, where: str, local: frozenset[tuple[str, str]]) -> None:
        self.where = where
        self.local = local

    def graph(
        self, graph: GraphProto, opsets: Mapping[str, int], *, function: bool, depth: int
    ) -> None:
        if depth > MOST_NESTED:
            raise InputError(f"{self.where}: graphs are nested over {MOST_NESTED} deep")
        for tensor in graph.initializer:
            check_tensor(tensor, self.where)
        for sparse in graph.sparse_initializer:
            check_sparse(sparse, self.where)
        # inputs of a nested graph need no type
        for value in graph.input:
            check_declared(value, self.where, given=depth == 0)
        for value in (*graph.output, *graph.value_info):
            check_declared(value, self.where, given=False)
        self.nodes(graph.node, opsets, function=function, depth=depth)

    def nodes(
        self, nodes: Iterable[NodeProto], opsets: Mapping[str, int], *, function: bool, depth: int
    ) -> None:
        for node in nodes:
            domain, op = node.domain, node.op_type
            if not (isinstance(op, str) and isinstance(domain, str) and isinstance(node.name, str)):
                raise InputError(
                    f"{self.where}: a node's name or operator is not UTF-8 text: {op!r}"[:300]
                )
            if op == "Constant" and not any(node.output) and (domain, op) not in self.local:
                raise self._wrong(node, "it has no output")
            listed = node.attribute[:]
            if not listed:
                continue
            kinds: Mapping[str, int] | None = None
            if (domain, op) not in self.local:
                standard = domains.canonical(domain)
                kinds = _kinds(op, opsets.get(standard, 0), standard)
            seen: set[str] = set()
            for a in listed:
                name, kind, referred = a.name, a.type, a.ref_attr_name
                # most are as their operator declares them: there is nothing else to check
                plain = kinds is not None and kinds.get(name) == kind and name not in _RANGED
                if not plain or referred or name in seen:
                    self._check(node, a, seen, kinds, function=function)
                seen.add(name)
                if kind in _LARGE and not referred:  # the call holds the value of a reference
                    self._contents(a, opsets, function=function, depth=depth)

    def _contents(
        self, a: AttributeProto, opsets: Mapping[str, int], *, function: bool, depth: int
    ) -> None:
        """Checks the tensors and graphs that an attribute holds."""
        if a.type == _TENSOR:
            check_tensor(a.t, self.where)
        elif a.type == _SPARSE_TENSOR:
            check_sparse(a.sparse_tensor, self.where)
        else:
            for graph in [a.g] if a.type == _GRAPH else a.graphs:
                self.graph(graph, opsets, function=function, depth=depth + 1)

    def _check(
        self,
        node: NodeProto,
        a: AttributeProto,
        seen: Set[str],
        kinds: Mapping[str, int] | None,
        *,
        function: bool,
    ) -> None:
        """Raises InputError unless the attribute is unique at its node, typed as its operator
        declares, and in range. `seen` holds the names of the attributes before it.
        """
        if not isinstance(a.name, str):
            raise self._wrong(node, "an attribute's name is not UTF-8 text")
        if a.name in seen:
            raise self._wrong(node, f"the attribute '{a.name}' is given twice")
        if not a.ref_attr_name:
            self._check_value(node, a, kinds)
        elif not function:
            raise self._wrong(
                node,
                f"the attribute '{a.name}' refers to a function's attribute "
                "outside of any function",
            )

    def _check_value(
        self, node: NodeProto, a: AttributeProto, kinds: Mapping[str, int] | None
    ) -> None:
        """Raises InputError unless the attribute is typed, as its operator declares if `kinds` are
        known, and in range.
        """
        if a.type == _A.UNDEFINED:
            raise self._wrong(node, f"the attribute '{a.name}' has no type")
        if kinds is None:
            return
        if a.name not in kinds:
            if a.name.startswith(_OWN):
                return
            raise self._wrong(node, f"the operator has no attribute '{a.name[:80]}'")
        if kinds[a.name] != a.type:
            raise self._wrong(
                node,
                f"the attribute '{a.name}' is of type {_kind(a.type)}, not {_kind(kinds[a.name])}",
            )
        if domains.is_default(node.domain) and a.name in _RANGED:
            self._check_range(node, a, *_RANGED[a.name])

    def _check_range(self, node: NodeProto, a: AttributeProto, least: int, end: int) -> None:
        """Raises InputError unless values are in [least, end) and num_outputs is at least the
        number of outputs.
        """
        values: Sequence[int] = a.ints if a.type == _A.INTS else [a.i]
        if values and not (least <= min(values) and max(values) < end):
            raise self._wrong(node, f"the attribute '{a.name}' is {str(list(values))[:60]}")
        if a.name == "num_outputs" and a.i < len(node.output):
            raise self._wrong(
                node, f"the attribute 'num_outputs' is {a.i}, but {len(node.output)} are named"
            )

    def _wrong(self, node: NodeProto, what: str) -> InputError:
        return InputError(f"{self.where}: {node.op_type} '{node.name[:80]}': {what}"[:600])


@lru_cache(maxsize=4096)
def _kinds(op: str, version: int, domain: str) -> Mapping[str, int] | None:
    """Attribute name -> AttributeProto.AttributeType of the operator's schema; None if onnx has no
    schema.
    """
    schema = attributes.schema(op, version, domain)
    if schema is None:
        return None
    return {name: int(a.type.value) for name, a in schema.attributes.items()}  # type: ignore[attr-defined]


def _kind(code: int) -> str:
    return str(_A.AttributeType.Name(code)) if code in _A.AttributeType.values() else str(code)


def check_contents(model: ModelProto, where: str) -> None:
    """Raises InputError for tensors, declared types and attributes that no runtime accepts."""
    local = frozenset((f.domain, f.name) for f in model.functions)
    reader = _Reader(where, local)
    reader.graph(model.graph, domains.versions(model.opset_import), function=False, depth=0)
    for function in model.functions:
        reader.nodes(function.node, domains.versions(function.opset_import), function=True, depth=0)


# onnxruntime inlines every call when it loads a model
MOST_INLINED = 10_000_000

_Key = tuple[str, str, str]


def check_model(proto: ModelProto, where: str) -> None:
    """Raises InputError for a file that is not an ONNX model, or needs a newer onnx than the one
    installed.
    """
    if not proto.HasField("graph") or not proto.ir_version:
        raise InputError(f"{where}: not an ONNX model (no graph or no IR version in it)")
    if not proto.opset_import:
        raise InputError(
            f"{where}: the model imports no operator set, so its operators have no meaning"
        )
    if proto.ir_version > onnx.IR_VERSION:
        raise InputError(
            f"{where}: IR version {proto.ir_version} is newer than the installed onnx "
            f"{onnx.__version__} knows ({onnx.IR_VERSION}): upgrade onnx"
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in (*proto.opset_import, *(o for f in proto.functions for o in f.opset_import)):
        if domains.is_default(entry.domain) and not 1 <= entry.version <= newest:
            raise InputError(
                f"{where}: unknown opset {entry.version} of the default domain; the installed onnx "
                f"{onnx.__version__} knows 1 to {newest}"
            )
    check_contents(proto, where)
    _check_functions(proto, where)


def inlined_nodes(proto: ModelProto) -> int:
    """Returns the number of nodes once every call of a local function is inlined; a small file may
    reach 2^30.
    """
    calls = _calls(proto)
    total = dict.fromkeys(calls, 0)
    for key in callees_first(calls):
        total[key] = sum(total.get(called, 1) for called in calls[key])
    return sum(total.get(_key(n), 1) for n in every_node(proto.graph.node))


def _check_functions(proto: ModelProto, where: str) -> None:
    keys = Counter((f.domain, f.name, f.overload) for f in proto.functions)
    for (domain, name, _), count in keys.items():
        if count > 1:
            raise InputError(f"{where}: function {domain}::{name} is defined twice")
    calls = _calls(proto)
    placed = set(callees_first(calls))
    for key in calls:
        if key not in placed:
            raise InputError(
                f"{where}: function {key[0]}::{key[1]} calls itself, directly or through others"
            )
    if calls and inlined_nodes(proto) > MOST_INLINED:
        raise InputError(
            f"{where}: its functions stand for over {MOST_INLINED:,} nodes, more than "
            "any runtime opens"
        )


def _calls(proto: ModelProto) -> dict[_Key, list[_Key]]:
    return {
        (f.domain, f.name, f.overload): [_key(n) for n in every_node(f.node)]
        for f in proto.functions
    }


def _key(node: NodeProto) -> _Key:
    return (node.domain, node.op_type, node.overload)
