"""Local functions of a model whose opset is raised: onnx.version_converter drops them all.

A function whose operators mean the same at the newer opset stays as it is, and imports that. One
with an operator that changed is opened at its calls first, where the types are known that
conversion depends on.
"""

from __future__ import annotations

from onnx import FunctionProto, ModelProto

from onnxgrad.errors import InputError
from onnxgrad.grad.bodies import open_call, refuse_bomb
from onnxgrad.grad.registry import rule_of
from onnxgrad.ir import domains
from onnxgrad.ir.anchor import anchor, lift
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.bodies import called, changes_meaning, functions_callees_first
from onnxgrad.ir.nodes import every_node
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.types import type_to_proto


def open_changed(program: Program, opset: int) -> list[str]:
    """Open the calls of functions that `opset` would give another meaning; returns the names of
    these functions.

    Raises InputError for one that has a gradient rule of its own, which the opened call would not
    meet, and for calls that double the graph too often.
    """
    changed: set[FunctionKey] = set()
    for key in functions_callees_first(program):
        function = program.functions[key]
        if any(
            called(b) in changed or changes_meaning(b, opset) is not None for b in function.walk()
        ):
            changed.add(key)
    if not changed:
        return []
    given = set(program.names)
    while calls := [b for b in program.main.walk() if called(b) in changed]:
        refuse_bomb(program.main, calls)
        for b in calls:
            _open(b, given, opset)
    for block in {b.block for b in program.main.walk()}:
        block.schedule()
    for key in changed:
        del program.functions[key]
    return sorted(name for _, name, _ in changed)


def _open(b: Binding, given: set[str], opset: int) -> None:
    """Open one call; its results keep the names that were `given`."""
    rule = rule_of(b)
    if rule is not None and rule.kind != "body":
        raise InputError(
            f"function {b.domain}::{b.op} is written for an opset below {opset}, and cannot keep "
            "its gradient rule when the model is raised to it: export the model again at opset "
            f"{opset} or above"
        )
    anchors = [anchor(v) for v in list(b.outputs) if v is not None]
    open_call(b)
    for identity in anchors:
        if (
            (v := identity.inputs[0]) is not None
            and v.definition is not None
            and v.name not in given
        ):
            lift(identity, given)


def without_functions(program: Program, source: ModelProto) -> ModelProto:
    """What there is to convert: no functions, through which onnx would infer call by call, but
    what calls return.
    """
    bare = ModelProto()
    bare.CopyFrom(source)
    del bare.functions[:]
    declared = {v.name for v in (*bare.graph.value_info, *bare.graph.output)}
    for b in program.main.bindings:
        for v in b.outputs if called(b) is not None else ():
            if v is not None and v.type is not None and v.name not in declared:
                bare.graph.value_info.add(name=v.name, type=type_to_proto(v.type))
    return bare


def carry_functions(source: ModelProto, converted: ModelProto, opset: int) -> None:
    """The functions that are left, importing `opset`; and what conversion drops of nodes that
    are not onnx's own.
    """
    for f in source.functions:
        raised = FunctionProto()
        raised.CopyFrom(f)
        for entry in raised.opset_import:
            if domains.is_default(entry.domain):
                entry.version = max(entry.version, opset)
        converted.functions.append(raised)
    before = {
        n.output[0]: n
        for n in every_node(source.graph.node)
        if not domains.is_default(n.domain) and n.output
    }
    for node in every_node(converted.graph.node):
        old = before.get(node.output[0]) if node.output else None
        if old is not None and (old.domain, old.op_type) == (node.domain, node.op_type):
            node.overload = old.overload
