"""Groups of bindings as local functions (TVM's FuseOps); `inline` is the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onnx import FunctionProto, NodeProto, ValueInfoProto

from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.bodies import import_opset
from onnxgrad.ir.names import rename
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.var import Var, names_of
from onnxgrad.outlining.functions import KEY, MADE_BY, declarations, remember
from onnxgrad.outlining.functions import RULE as _RULE
from onnxgrad.outlining.groups import fusion_groups
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.inline import put_in_place
from onnxgrad.rewrite.trace import Trace

DOMAIN = "onnxgrad"
_VERSION = 1
# models hold local functions from this IR version on, and metadata on functions and nodes from that
# one
_FUNCTIONS_SINCE = 8
_METADATA_SINCE = 10
# operators spelled out in a function's name
_NAMED = 6


@dataclass(frozen=True, slots=True)
class _File:
    """What the file has about a block beyond its computation: where each binding stood, and
    declared types.
    """

    position: Mapping[Binding, int]
    said: Mapping[Var, ValueInfoProto]


@register
@dataclass(frozen=True)
class Outline(Pass):
    """g(f(x)) = fg(x): bindings that one loop can compute become one local function; a reduction
    ends a group.

    Groups follow operator kinds and dominance (see `fusion_groups`); equal groups share a function.
    `max_size` bounds a group, `min_size` leaves smaller ones alone. Nested graphs are outlined like
    the main one. Bodies of functions are not: values there have no types, so that nothing is known
    about broadcasting, and a group that reads an attribute of the function would have to hand it
    on; inline what is to be grouped. From IR version 10 on functions and calls have room for
    declared types and for names and positions, and `inline` gives back the model as it was.
    """

    name: ClassVar[str] = "outline"
    max_size: int = 256
    min_size: int = 1

    def run(self, program: Program, trace: Trace) -> None:
        """Outline in the main graph and its nested graphs; one firing for each group."""
        if program.ir_version < _FUNCTIONS_SINCE:
            trace.missed(
                _RULE,
                program.main.name,
                f"IR version {program.ir_version} has no functions; 8 is the first",
            )
            return
        known: dict[Any, FunctionKey] = {}
        blocks = [
            program.main,
            *(nested for b in program.main.walk() for nested in b.blocks.values()),
        ]
        for block in blocks:
            block.schedule()
            before = list(block.bindings)
            file = _File({b: i for i, b in enumerate(before)}, declarations(block))
            calls: dict[Binding, list[Binding]] = {}
            for group in fusion_groups(block, self.max_size):
                if len(group) >= self.min_size and not trace.stopped:
                    where = str(group[-1])
                    call = _outline(group, known, file)
                    calls[group[-1]] = [call]
                    trace.of(_RULE).applied += 1
                    trace.fired(_RULE, f"{len(group)} bindings up to {where} as {call.op}")
            if calls:
                put_in_place(block, before, calls)


def _outline(group: list[Binding], known: dict[Any, FunctionKey], file: _File) -> Binding:
    """Replace a group, in order and ending in its only result, by a call. Returns the call."""
    block, result = group[0].block, group[-1].out
    program = block.program
    inner = set(group)
    operands = list(
        dict.fromkeys(
            v for b in group for v in b.inputs if v is not None and v.definition not in inner
        )
    )
    key = _structure(group, operands, file)
    function = known.get(key)
    if function is None:
        function = known[key] = _define(program, group, operands, file)
    import_opset(block, DOMAIN, _VERSION)
    name = program.names.fresh(f"{function[1]}_call")
    node = NodeProto(
        op_type=function[1], domain=DOMAIN, name=name, input=[v.name for v in operands]
    )
    node.output.append(program.names.fresh(result.name))
    _mark(node, group, file.position)
    call = block.append(node, operands, [result.type])
    block.replace(result, call.out)
    if result in block.declared:
        block.declared[call.out] = block.declared.pop(result)
    if not call.out.returned:  # the name stays with the value that readers see
        spare, kept = call.out.name, result.name
        rename(result, spare)
        rename(call.out, kept)
    for b in reversed(group):
        block.remove(b)
    return call


def _mark(node: NodeProto, group: list[Binding], position: Mapping[Binding, int]) -> None:
    """Where the group runs, which all its members agree on, and what made the call."""
    program = group[0].block.program
    if program.ir_version >= _METADATA_SINCE:
        node.metadata_props.extend(e for e in group[-1].node.metadata_props if e.key == "layer_ann")
        node.metadata_props.add(key=MADE_BY, value=_RULE)
        node.metadata_props.add(key=KEY, value=remember(group, position))
    node.device_configurations.extend(group[-1].node.device_configurations)


def _define(
    program: Program, group: list[Binding], operands: list[Var], file: _File
) -> FunctionKey:
    """A new function with the group's bindings; values keep their names inside."""
    shown = "_".join(b.op.lower() for b in group[:_NAMED]) + ("_etc" if len(group) > _NAMED else "")
    proto = FunctionProto(domain=DOMAIN, name=program.names.fresh(f"fused_{shown}"))
    domains, block = dict.fromkeys(b.domain for b in group), group[0].block
    for domain in domains:
        proto.opset_import.add(domain=domain, version=block.opsets[domain])
    if program.ir_version >= _METADATA_SINCE:
        proto.metadata_props.add(key=MADE_BY, value=_RULE)
        proto.value_info.extend(file.said[v] for v in _inner(group) if v in file.said)
    body = BindingBlock(program, proto, {d: block.opsets[d] for d in domains})
    inside: dict[Var, Var] = {v: body.add_input(v.name, None) for v in operands}
    for b in group:
        node = _plain(b)
        inputs = [None if v is None else inside[v] for v in b.inputs]
        node.input[:] = names_of(inputs)
        node.output[:] = names_of(b.outputs)
        copy = body.append(node, inputs, [None] * len(b.outputs))
        inside.update(
            (old, new)
            for old, new in zip(b.outputs, copy.outputs)
            if old is not None and new is not None
        )
    body.add_output(inside[group[-1].out])
    key = (DOMAIN, proto.name, "")
    program.functions[key] = body
    return key


def _plain(b: Binding) -> NodeProto:
    """A copy of the binding's node in the one spelling of the default domain that loads in
    functions.
    """
    node = NodeProto()
    node.CopyFrom(b.node)
    domains.respell(node)
    return node


def _structure(group: list[Binding], operands: list[Var], file: _File) -> Any:
    """Equal for groups that are the same, declared types included, up to the names of values and
    nodes.
    """
    number = {v: i for i, v in enumerate(operands)}
    rows = []
    for b in group:
        node = _plain(b)
        node.ClearField("name")
        node.input[:] = ["" if v is None else str(number[v]) for v in b.inputs]
        for v in b.outputs:
            if v is not None:
                number[v] = len(number)
        node.output[:] = ["" if v is None else str(number[v]) for v in b.outputs]
        rows.append(node.SerializeToString(deterministic=True))
    return tuple(rows), tuple(_nameless(file.said.get(v)) for v in _inner(group))


def _nameless(info: ValueInfoProto | None) -> bytes:
    bare = ValueInfoProto()
    if info is not None:
        bare.CopyFrom(info)
        bare.name = "declared"
    data: bytes = bare.SerializeToString(deterministic=True)
    return data


def _inner(group: list[Binding]) -> list[Var]:
    """The values that only the group reads."""
    return [v for b in group[:-1] for v in b.outputs if v is not None]
