"""Replaces a group of bindings by a call of a local function, with metadata by which `inline`
restores the bindings exactly.

One function body may serve many groups, so the metadata of each call holds the differences: the
position of every member, its node name and the names of its results. Declared types are in the
function (`FunctionProto.value_info`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, ValueInfoProto, helper, numpy_helper

from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.function_bodies import import_opset
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var, names_of
from onnxgrad.rewrite.pattern import COMMUTATIVE

KEY = "onnxgrad.outlined"
MADE_BY = "onnxgrad.made_by"
RULE = "outline_group"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a group's member: its position in the block, its node's name (None if not set)
    and its results' names.
    """

    position: int
    name: str | None
    outputs: tuple[str, ...]


def remember(group: Sequence[Binding], position: Mapping[Binding, int]) -> str:
    """The metadata value for the call of `group`."""
    rows = [
        [
            position[b],
            b.node.name if b.node.HasField("name") else None,
            [v.name if v is not None else "" for v in b.outputs],
        ]
        for b in group
    ]
    return json.dumps(rows, separators=(",", ":"))


def origins(node: NodeProto) -> list[Origin] | None:
    """The origins in the metadata of `node`, in the order of the body; None if `outline` did not
    make this call, or if it was edited.
    """
    text = next((e.value for e in node.metadata_props if e.key == KEY), None)
    if text is None:
        return None
    try:
        rows = json.loads(text)
        return [
            Origin(int(at), name and str(name), tuple(map(str, outputs)))
            for at, name, outputs in rows
        ]
    except (ValueError, TypeError):
        return None


def declarations(block: BindingBlock) -> dict[Var, ValueInfoProto]:
    """The types that the file declares for the results in `block`."""
    known = {info.name: info for info in block.proto.value_info}
    outs = (v for b in block.bindings for v in b.outputs if v is not None)
    infos = ((v, block.declared[v] if v in block.declared else known.get(v.name)) for v in outs)
    return {v: info for v, info in infos if info is not None}


def declare_copies(body: BindingBlock, copies: Iterable[Binding]) -> None:
    """Declares the copies of an outlined body as their originals were declared, or not at all if
    these had no declaration.
    """
    proto = body.proto
    made_by = next((e.value for e in proto.metadata_props if e.key == MADE_BY), None)
    if not isinstance(proto, FunctionProto) or made_by != RULE:
        return
    known = {info.name: info for info in proto.value_info}
    for inner, copy in zip(body.bindings, copies, strict=True):
        for old, new in zip(inner.outputs, copy.outputs, strict=True):
            if old is not None and new is not None:
                new.block.declared[new] = known.get(old.name)


def restore_names(root: BindingBlock, found: Mapping[Binding, Origin], results: set[Var]) -> None:
    """Restores the names of inlined bindings if these are free. `results` keep the names that their
    readers use.
    """
    nodes = {b.node.name for b in root.walk() if b not in found}
    inner = [
        (v, name)
        for b, o in found.items()
        for v, name in zip(b.outputs, o.outputs)
        if v is not None
    ]
    inner = [(v, name) for v, name in inner if name and v not in results and not v.returned]
    moving = {v for v, _ in inner}
    values = {v.name for block in blocks_in(root) for v in block.vars() if v not in moving}
    for v, name in inner:
        wanted = next(
            (n for n in (name, v.name) if n not in values), None
        ) or root.program.names.fresh(name)
        values.add(wanted)
        v.rename(wanted)
    for b, origin in found.items():
        if origin.name is None:
            b.node.ClearField("name")
        elif not origin.name or origin.name not in nodes:
            b.node.name = origin.name
        elif b.node.name in nodes:
            b.node.name = root.program.names.fresh(b.node.name)
        nodes.add(b.node.name)


def restore_order(block: BindingBlock, found: Mapping[Binding, Origin]) -> None:
    """Puts bindings back at their old positions; the others fill the places between. `schedule`
    repairs an order that is no longer valid.
    """
    if any(origins(b.node) is not None for b in block.bindings):
        return  # a group that stays takes one position instead of several, so none is right
    at = {found[b].position: b for b in block.bindings if b in found}
    rest = [b for b in block.bindings if at.get(found[b].position if b in found else -1) is not b]
    placed: dict[Binding, None] = {}
    others = iter(rest)
    for i in range(len(block.bindings)):
        b = at.get(i) or next(others, None)
        if b is not None:
            placed[b] = None
    block.bindings = placed | block.bindings
    block.schedule()


DOMAIN = "onnxgrad"
_VERSION = 1
# the first IR version with local functions, and the first with metadata on functions and nodes
FUNCTIONS_SINCE = 8
_METADATA_SINCE = 10
# the most operators that are spelled out in a function's name
_NAMED = 6


@dataclass(frozen=True, slots=True)
class File:
    """The order of a block in the file, and the types that the file declares."""

    position: Mapping[Binding, int]
    declared: Mapping[Var, ValueInfoProto]

    @staticmethod
    def of(block: BindingBlock) -> File:
        """Reads both from a block in order."""
        return File({b: i for i, b in enumerate(block.bindings)}, declarations(block))


@frozen
class Group:
    """Bindings in order, and the values that they read from outside. `several`: the results that
    others read; by default the result of the last binding.

    `name`: the function's name; None derives it from the operators. `inside`: constants that become
    part of the body. `parameters`: the function's names of attributes that the call sets, by
    binding and attribute. `commutes`: ignore the order of the operands of commutative operators.
    """

    members: Sequence[Binding]
    operands: Sequence[Var]
    domain: str = DOMAIN
    name: str | None = None
    inside: Mapping[Var, Array] = field(default_factory=dict)
    parameters: Mapping[tuple[Binding, str], str] = field(default_factory=dict)
    commutes: bool = False
    several: Sequence[Var] = ()

    @staticmethod
    def of(members: Sequence[Binding]) -> Group:
        """The group of `members`, whose operands are all outer values in reading order."""
        return Group(members, outer(members))

    @property
    def block(self) -> BindingBlock:
        """The block of the members."""
        return self.members[0].block

    @property
    def results(self) -> Sequence[Var]:
        """The values that others read."""
        return self.several or [self.members[-1].out]

    @property
    def inner(self) -> list[Var]:
        """The values that only the group reads."""
        results = set(self.results)
        return [v for b in self.members for v in b.outputs if v is not None and v not in results]


def outer(members: Sequence[Binding]) -> list[Var]:
    """The values that a group reads from outside, in the order in which they are read."""
    own = set(members)
    read = (v for b in members for v in b.inputs if v is not None and v.definition not in own)
    return list(dict.fromkeys(read))


def call_of(group: Group, function: str, file: File) -> Binding:
    """Replaces the group by a call of `function`, which has the same structure. Returns the
    call.
    """
    block, results = group.block, group.results
    program = block.program
    import_opset(block, group.domain, _VERSION)
    name = program.names.fresh(f"{function}_call")
    node = NodeProto(
        op_type=function, domain=group.domain, name=name, input=[v.name for v in group.operands]
    )
    node.output.extend(program.names.fresh(v.name) for v in results)
    node.attribute.extend(_attribute_values(group))
    _mark(node, group.members, file.position)
    call = block.append(node, list(group.operands), [v.type for v in results])
    for i, result in enumerate(results):
        out = call.result(i)
        if out is None:
            continue
        block.replace(result, out)
        if result in block.declared:
            block.declared[out] = block.declared.pop(result)
        if not out.returned:  # readers keep the name of the value
            result.swap_names(out)
    for b in reversed(group.members):
        block.remove(b)
    return call


def _attribute_values(group: Group) -> list[AttributeProto]:
    """The attributes of the call: the values of the function's parameters, each once."""
    found: dict[str, AttributeProto] = {}
    for (b, attribute), parameter in group.parameters.items():
        value = b.attr(attribute)
        if parameter not in found and value is not None:
            found[parameter] = helper.make_attribute(parameter, value)
    return list(found.values())


def _mark(node: NodeProto, group: Sequence[Binding], position: Mapping[Binding, int]) -> None:
    """Marks a call with the device of its group, which all members share, and with their
    origins.
    """
    if group[0].block.program.ir_version >= _METADATA_SINCE:
        node.metadata_props.extend(e for e in group[-1].node.metadata_props if e.key == "layer_ann")
        node.metadata_props.add(key=MADE_BY, value=RULE)
        node.metadata_props.add(key=KEY, value=remember(group, position))
    node.device_configurations.extend(group[-1].node.device_configurations)


def define(group: Group, file: File, name: str | None = None) -> FunctionKey:
    """Defines a function with the group's bindings. Its name is `name`, by default that of the
    group. The values inside keep their names.
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
        proto.value_info.extend(file.declared[v] for v in group.inner if v in file.declared)
    body = BindingBlock(program, proto, {d: block.opsets[d] for d in used})
    inside: dict[Var, Var] = {v: body.add_input(v.name, None) for v in group.operands}
    for v, array in group.inside.items():
        value = numpy_helper.from_array(array)
        constant = helper.make_node("Constant", [], [v.name], value=value)
        inside[v] = body.append(constant, [], [None]).out
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
    for v in group.results:
        body.add_output(inside[v])
    key = (group.domain, proto.name, "")
    program.functions[key] = body
    return key


def _plain(group: Group, b: Binding) -> NodeProto:
    """A copy of the binding's node, with references to the function's parameters. The default
    domain is spelled "", the only spelling that loads in functions.
    """
    node = copy_of(b.node)
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
    """A key that is equal for equal groups. It includes declared types. It ignores the names of
    values and nodes, and the attributes that the call sets.
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
    return tuple(rows), held, tuple(_nameless(file.declared.get(v)) for v in group.inner)


def _nameless(info: ValueInfoProto | None) -> bytes:
    bare = ValueInfoProto()
    if info is not None:
        bare.CopyFrom(info)
        bare.name = "declared"
    data: bytes = bare.SerializeToString(deterministic=True)
    return data
