"""A group of bindings put into a local function, and a call of it in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, ValueInfoProto, helper, numpy_helper

from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.bodies import import_opset
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var, names_of
from onnxgrad.outlining.functions import KEY, MADE_BY, RULE, declarations, remember
from onnxgrad.rewrite.pattern import COMMUTATIVE

DOMAIN = "onnxgrad"
_VERSION = 1
# models hold local functions from this IR version on, and metadata on functions and nodes from that
# one
FUNCTIONS_SINCE = 8
_METADATA_SINCE = 10
# operators spelled out in a function's name
_NAMED = 6


@dataclass(frozen=True, slots=True)
class File:
    """What the file has about a block beyond its computation: where each binding stood, and
    declared types.
    """

    position: Mapping[Binding, int]
    said: Mapping[Var, ValueInfoProto]

    @staticmethod
    def of(block: BindingBlock) -> File:
        """For a block in order."""
        return File({b: i for i, b in enumerate(block.bindings)}, declarations(block))


@dataclass(frozen=True)
class Group:
    """Bindings in order, the last of which computes the group's only result, and what they read
    from outside.

    `name`: of the function, None: after its operators. `inside`: constants that become part of the
    body. `parameters`: attributes that the caller says, by binding and name, as the function calls
    them. `commutes`: the order of the operands of a commutative operator makes no other group.
    """

    members: Sequence[Binding]
    operands: Sequence[Var]
    domain: str = DOMAIN
    name: str | None = None
    inside: Mapping[Var, Array] = field(default_factory=dict)
    parameters: Mapping[tuple[Binding, str], str] = field(default_factory=dict)
    commutes: bool = False

    @staticmethod
    def of(members: Sequence[Binding]) -> Group:
        """With everything as an operand, in the order in which it is read."""
        return Group(members, outer(members))

    @property
    def block(self) -> BindingBlock:
        """Where they stand."""
        return self.members[0].block

    @property
    def inner(self) -> list[Var]:
        """The values that only the group reads."""
        return [v for b in self.members[:-1] for v in b.outputs if v is not None]


def outer(members: Sequence[Binding]) -> list[Var]:
    """What a group reads from outside, in the order in which it is read."""
    own = set(members)
    read = (v for b in members for v in b.inputs if v is not None and v.definition not in own)
    return list(dict.fromkeys(read))


def call_of(group: Group, function: str, file: File) -> Binding:
    """Replace the group by a call of `function`, which has its structure. Returns the call."""
    block, result = group.block, group.members[-1].out
    program = block.program
    import_opset(block, group.domain, _VERSION)
    name = program.names.fresh(f"{function}_call")
    node = NodeProto(
        op_type=function, domain=group.domain, name=name, input=[v.name for v in group.operands]
    )
    node.output.append(program.names.fresh(result.name))
    node.attribute.extend(_said(group))
    _mark(node, group.members, file.position)
    call = block.append(node, list(group.operands), [result.type])
    block.replace(result, call.out)
    if result in block.declared:
        block.declared[call.out] = block.declared.pop(result)
    if not call.out.returned:  # the name stays with the value that readers see
        spare, kept = call.out.name, result.name
        result.rename(spare)
        call.out.rename(kept)
    for b in reversed(group.members):
        block.remove(b)
    return call


def _said(group: Group) -> list[AttributeProto]:
    """The values of the function's parameters, each once."""
    found: dict[str, AttributeProto] = {}
    for (b, attribute), parameter in group.parameters.items():
        value = b.attr(attribute)
        if parameter not in found and value is not None:
            found[parameter] = helper.make_attribute(parameter, value)
    return list(found.values())


def _mark(node: NodeProto, group: Sequence[Binding], position: Mapping[Binding, int]) -> None:
    """Where the group runs, which all its members agree on, and what made the call."""
    program = group[0].block.program
    if program.ir_version >= _METADATA_SINCE:
        node.metadata_props.extend(e for e in group[-1].node.metadata_props if e.key == "layer_ann")
        node.metadata_props.add(key=MADE_BY, value=RULE)
        node.metadata_props.add(key=KEY, value=remember(group, position))
    node.device_configurations.extend(group[-1].node.device_configurations)


def define(group: Group, file: File, name: str | None = None) -> FunctionKey:
    """A new function with the group's bindings, called `name` or as the group says; values keep
    their names inside.
    """
    members, block = group.members, group.block
    program: Program = block.program
    shown = "_".join(b.op.lower() for b in members[:_NAMED]) + (
        "_etc" if len(members) > _NAMED else ""
    )
    name = name or group.name or program.names.fresh(f"fused_{shown}")
    proto = FunctionProto(domain=group.domain, name=name)
    proto.attribute.extend(dict.fromkeys(group.parameters.values()))
    used = dict.fromkeys([b.domain for b in members] + ([""] if group.inside else []))
    for domain in used:
        proto.opset_import.add(domain=domain, version=block.opsets[domain])
    if program.ir_version >= _METADATA_SINCE:
        proto.metadata_props.add(key=MADE_BY, value=RULE)
        proto.value_info.extend(file.said[v] for v in group.inner if v in file.said)
    body = BindingBlock(program, proto, {d: block.opsets[d] for d in used})
    inside: dict[Var, Var] = {v: body.add_input(v.name, None) for v in group.operands}
    for v, array in group.inside.items():
        inside[v] = body.append(_constant(v, array), [], [None]).out
    for b in members:
        node = _plain(group, b)
        inputs = [None if v is None else inside[v] for v in b.inputs]
        node.input[:] = names_of(inputs)
        node.output[:] = names_of(b.outputs)
        copy = body.append(node, inputs, [None] * len(b.outputs))
        inside.update(
            (old, new)
            for old, new in zip(b.outputs, copy.outputs)
            if old is not None and new is not None
        )
    body.add_output(inside[members[-1].out])
    key = (group.domain, proto.name, "")
    program.functions[key] = body
    return key


def _constant(v: Var, array: Array) -> NodeProto:
    return helper.make_node("Constant", [], [v.name], value=numpy_helper.from_array(array))


def _plain(group: Group, b: Binding) -> NodeProto:
    """A copy of the binding's node in the one spelling of the default domain that loads in
    functions, with references to the function's parameters.
    """
    node = NodeProto()
    node.CopyFrom(b.node)
    domains.respell(node)
    for (member, name), parameter in group.parameters.items():
        value = b.attr(name) if member is b else None
        if value is None:
            continue
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        kind = helper.make_attribute(name, value).type
        node.attribute.add(name=name, ref_attr_name=parameter, type=kind)
    return node


def structure(group: Group, file: File) -> Any:
    """Equal for groups that are the same, declared types included, up to the names of values and
    nodes, and what the caller says.
    """
    number = {v: i for i, v in enumerate((*group.operands, *group.inside))}
    rows = []
    for b in group.members:
        node = _plain(group, b)
        node.ClearField("name")
        read = ["" if v is None else str(number[v]) for v in b.inputs]
        anywhere = group.commutes and not b.domain and b.op in COMMUTATIVE
        node.input[:] = sorted(read) if anywhere else read
        for v in b.outputs:
            if v is not None:
                number[v] = len(number)
        node.output[:] = ["" if v is None else str(number[v]) for v in b.outputs]
        rows.append(node.SerializeToString(deterministic=True))
    held = tuple((str(a.dtype), a.shape, a.tobytes()) for a in group.inside.values())
    return tuple(rows), held, tuple(_nameless(file.said.get(v)) for v in group.inner)


def _nameless(info: ValueInfoProto | None) -> bytes:
    bare = ValueInfoProto()
    if info is not None:
        bare.CopyFrom(info)
        bare.name = "declared"
    data: bytes = bare.SerializeToString(deterministic=True)
    return data
