"""What must hold before we look at a model at all; onnx.checker accepts much of this and refuses
legal models.
"""

from __future__ import annotations

import onnx
from onnx import ModelProto, NodeProto

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.nodes import every_node
from onnxgrad.ir.preflight.nodes import check_contents
from onnxgrad.ir.topological_order import callees_first

# onnxruntime opens every call when it loads a model
MOST_INLINED = 10_000_000

_Key = tuple[str, str, str]


def check_model(proto: ModelProto, where: str) -> None:
    """Raises InputError for a file that is no ONNX model or that names versions this onnx does
    not know.
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
    imports = [*proto.opset_import, *(o for f in proto.functions for o in f.opset_import)]
    for entry in imports:
        if domains.is_default(entry.domain) and not 1 <= entry.version <= newest:
            raise InputError(
                f"{where}: unknown opset {entry.version} of the default domain; the installed onnx "
                f"{onnx.__version__} knows 1 to {newest}"
            )
    check_contents(proto, where)
    _check_functions(proto, where)


def inlined_nodes(proto: ModelProto) -> int:
    """How many nodes the model has once every call of a local function is inlined: 2^30 is
    easily written.
    """
    calls = _calls(proto)
    total = dict.fromkeys(calls, 0)
    for key in callees_first(calls):
        total[key] = sum(total.get(called, 1) for called in calls[key])
    return sum(total.get(_key(n), 1) for n in every_node(proto.graph.node))


def _check_functions(proto: ModelProto, where: str) -> None:
    seen: set[_Key] = set()
    for f in proto.functions:
        key = (f.domain, f.name, f.overload)
        if key in seen:
            raise InputError(f"{where}: function {f.domain}::{f.name} is defined twice")
        seen.add(key)
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
