"""What a call made by `outline` remembers of the bindings it stands for, so that `inline` can put
back all of it.

A function's body may stand for many groups, so what differs between them is in the metadata of each
call: where every member stood, its node name and its results' names. Declared types are in the
function (`FunctionProto.value_info`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, NodeProto, ValueInfoProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.var import Var

KEY = "onnxgrad.outlined"
MADE_BY = "onnxgrad.made_by"
RULE = "outline_group"


@dataclass(frozen=True, slots=True)
class Origin:
    """One member of a group: its position in the block, its node's name (None: not set), its
    results' names.
    """

    position: int
    name: str | None
    outputs: tuple[str, ...]


def remember(group: Sequence[Binding], position: Mapping[Binding, int]) -> str:
    """The metadata value for the call of `group`."""
    rows = [
        [position[b], _name(b.node), [v.name if v is not None else "" for v in b.outputs]]
        for b in group
    ]
    return json.dumps(rows, separators=(",", ":"))


def origins(node: NodeProto) -> list[Origin] | None:
    """What `node` remembers, in the order of the body; None when it is no call of `outline`'s,
    or was edited.
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
    """What the file says about the results in `block`."""
    known = {info.name: info for info in block.proto.value_info}
    outs = (v for b in block.bindings for v in b.outputs if v is not None)
    said = ((v, block.declared[v] if v in block.declared else known.get(v.name)) for v in outs)
    return {v: info for v, info in said if info is not None}


def declare_copies(body: BindingBlock, copies: Iterable[Binding]) -> None:
    """Let copies of an outlined body be declared as their originals were, and where these were
    not, not at all.
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
    """Give inlined bindings their old names where these are free; `results` have the names that
    readers know.
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
    values = {v.name for block in _blocks(root) for v in block.vars() if v not in moving}
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
    """Put bindings where they stood; the others fill the places between. `schedule` repairs what
    no longer fits.
    """
    if any(origins(b.node) is not None for b in block.bindings):
        return  # a group that stays takes one place where it had several: positions mean nothing
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


def _name(node: NodeProto) -> str | None:
    return node.name if node.HasField("name") else None


def _blocks(root: BindingBlock) -> list[BindingBlock]:
    return [root, *(nested for b in root.walk() for nested in b.blocks.values())]
