"""Groups of bindings as local functions (SPEC S4, FuseOps); `inline` is the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnx import FunctionProto, NodeProto

from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.bodies import import_opset
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.fusion_groups import fusion_groups
from onnxgrad.passes.inline import put_in_place
from onnxgrad.rewrite.trace import Trace

DOMAIN = "onnxgrad"
_RULE = "outline_group"
_VERSION = 1
# models hold local functions from this IR version on, and metadata on functions and nodes from that one
_FUNCTIONS_SINCE = 8
_METADATA_SINCE = 10
# operators spelled out in a function's name
_NAMED = 6


@register
@dataclass(frozen=True)
class Outline(Pass):
    """g(f(x)) = fg(x): bindings that one loop can compute become one local function; a reduction ends a group.

    Groups follow operator kinds and dominance (see `fusion_groups`); equal groups share a function. `max_size` bounds a
    group, `min_size` leaves smaller ones alone.
    """

    name: ClassVar[str] = "outline"
    max_size: int = 256
    min_size: int = 1

    def run(self, program: Program, trace: Trace) -> None:
        """Outline in the main graph and its nested graphs; one firing for each group."""
        if program.ir_version < _FUNCTIONS_SINCE:
            trace.missed(_RULE, program.main.name, f"IR version {program.ir_version} has no functions; 8 is the first")
            return
        known: dict[Any, FunctionKey] = {}
        blocks = [program.main, *(nested for b in program.main.walk() for nested in b.blocks.values())]
        for block in blocks:
            block.schedule()
            before = list(block.bindings)
            calls: dict[Binding, list[Binding]] = {}
            for group in fusion_groups(block, self.max_size):
                if len(group) >= self.min_size and not trace.stopped:
                    where = str(group[-1])
                    call = _outline(group, known)
                    calls[group[-1]] = [call]
                    trace.of(_RULE).applied += 1
                    trace.fired(_RULE, f"{len(group)} bindings up to {where} as {call.op}")
            if calls:
                put_in_place(block, before, calls)


def _outline(group: list[Binding], known: dict[Any, FunctionKey]) -> Binding:
    """Replace a group, in order and ending in its only result, by a call. Returns the call."""
    block, result = group[0].block, group[-1].out
    program = block.program
    inner = set(group)
    operands = list(dict.fromkeys(v for b in group for v in b.inputs if v is not None and v.definition not in inner))
    key = _structure(group, operands)
    function = known.get(key)
    if function is None:
        function = known[key] = _define(program, block, group, operands)
    import_opset(block, DOMAIN, _VERSION)
    name = program.fresh(f"{function[1]}_call")
    node = NodeProto(op_type=function[1], domain=DOMAIN, name=name, input=[v.name for v in operands])
    node.output.append(program.fresh(result.name))
    _mark(node, group)
    call = block.append(node, operands, [result.type])
    block.replace(result, call.out)
    if not call.out.returned:  # the name stays with the value that readers see
        spare, kept = call.out.name, result.name
        block.rename(result, spare)
        block.rename(call.out, kept)
    for b in reversed(group):
        block.remove(b)
    return call


def _mark(node: NodeProto, group: list[Binding]) -> None:
    """Where the group runs, which all its members agree on, and what made the call."""
    program = group[0].block.program
    if program.ir_version >= _METADATA_SINCE:
        node.metadata_props.extend(e for e in group[-1].node.metadata_props if e.key == "layer_ann")
        node.metadata_props.add(key="onnxgrad.made_by", value=_RULE)
    node.device_configurations.extend(group[-1].node.device_configurations)


def _define(program: Program, block: BindingBlock, group: list[Binding], operands: list[Var]) -> FunctionKey:
    """A new function with the group's bindings; values keep their names inside."""
    shown = "_".join(b.op.lower() for b in group[:_NAMED]) + ("_etc" if len(group) > _NAMED else "")
    proto = FunctionProto(domain=DOMAIN, name=program.fresh(f"fused_{shown}"))
    domains = dict.fromkeys(b.domain for b in group)
    for domain in domains:
        proto.opset_import.add(domain=domain, version=block.opsets[domain])
    if program.ir_version >= _METADATA_SINCE:
        proto.metadata_props.add(key="onnxgrad.made_by", value=_RULE)
    body = BindingBlock(program, proto, {d: block.opsets[d] for d in domains})
    inside: dict[Var, Var] = {v: body.add_input(v.name, None) for v in operands}
    for b in group:
        node = NodeProto()
        node.CopyFrom(b.node)
        inputs = [None if v is None else inside[v] for v in b.inputs]
        node.input[:] = ["" if v is None else v.name for v in inputs]
        node.output[:] = ["" if v is None else v.name for v in b.outputs]
        copy = body.append(node, inputs, [None] * len(b.outputs))
        inside.update((old, new) for old, new in zip(b.outputs, copy.outputs) if old is not None and new is not None)
    body.add_output(inside[group[-1].out])
    key = (DOMAIN, proto.name, "")
    program.functions[key] = body
    return key


def _structure(group: list[Binding], operands: list[Var]) -> Any:
    """Equal for groups that are the same up to the names of values and nodes."""
    number = {v: i for i, v in enumerate(operands)}
    rows = []
    for b in group:
        node = NodeProto()
        node.CopyFrom(b.node)
        node.ClearField("name")
        node.input[:] = ["" if v is None else str(number[v]) for v in b.inputs]
        for v in b.outputs:
            if v is not None:
                number[v] = len(number)
        node.output[:] = ["" if v is None else str(number[v]) for v in b.outputs]
        rows.append(node.SerializeToString(deterministic=True))
    return tuple(rows)
