"""Which nodes of a graph belong together: the modules that an exporter names, else parts of equal
length.

Torch writes the module of each node into its metadata, other exporters into names such as
`/encoder/layer.0/MatMul`. A page shows few boxes at a time, so a group never holds more than a
screen can show: what no name divides is divided by its place in the graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import TypeAlias

from onnxgrad.ir.binding import Binding

Scope: TypeAlias = tuple[str, ...]

_TORCH = "pkg.torch.onnx.name_scopes"
_UNION = " | "  # between the values of nodes that were made one
_MOST = 60  # boxes in a group
_PART = 30  # boxes in each part of one that holds more


def scope_of(b: Binding) -> Scope | None:
    """The modules around a binding, outermost first; None where nothing names them."""
    for entry in b.node.metadata_props:
        if entry.key == _TORCH:
            return _of_torch(entry.value)
    if "/" in b.node.name:
        return tuple(part for part in b.node.name.split("/")[:-1] if part)
    return None


def _of_torch(text: str) -> Scope | None:
    """The scopes of a node, or those that nodes merged into one have in common."""
    found = []
    for listed in text.split(_UNION):
        try:
            names = ast.literal_eval(listed)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            return None
        found.append(_relative(names[:-1]))
    return _common(found)


def _common(scopes: Sequence[Scope]) -> Scope:
    """What all of them begin with."""
    levels = zip(*scopes, strict=False)
    return tuple(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


def _relative(names: Sequence[str]) -> Scope:
    """Each name without the beginning that it has from the one around it."""
    return tuple(name.removeprefix(f"{outer}.") for outer, name in pairwise(["", *names]) if name)


@dataclass
class Group:
    """Nodes, by number, and groups, in the order of the graph."""

    title: str
    members: list[Group | int] = field(default_factory=list)

    def nodes(self) -> Iterable[int]:
        """The numbers of all nodes in it."""
        for member in self.members:
            if isinstance(member, Group):
                yield from member.nodes()
            else:
                yield member


def grouped(scopes: Sequence[Scope]) -> Group:
    """The groups of nodes with these scopes; each is worth a box and fits a screen."""
    root = Group("")
    known: dict[Scope, Group] = {(): root}
    for i, scope in enumerate(scopes):
        at = root
        for depth in range(1, len(scope) + 1):
            if scope[:depth] not in known:
                known[scope[:depth]] = Group(scope[depth - 1])
                at.members.append(known[scope[:depth]])
            at = known[scope[:depth]]
        at.members.append(i)
    return _divided(_simple(root))


def _simple(group: Group) -> Group:
    """Without groups of one node, and with a group that holds one group alone as that group."""
    members: list[Group | int] = []
    for member in group.members:
        if not isinstance(member, Group):
            members.append(member)
            continue
        inner = _simple(member)
        members += inner.members if len(inner.members) == 1 else [inner]
    only = members[0] if len(members) == 1 else None
    if isinstance(only, Group):
        return Group(f"{group.title}.{only.title}" if group.title else only.title, only.members)
    return Group(group.title, members)


def _divided(group: Group) -> Group:
    members: list[Group | int] = [_divided(m) if isinstance(m, Group) else m for m in group.members]
    while len(members) > _MOST:
        parts = [members[i : i + _PART] for i in range(0, len(members), _PART)]
        members = [Group(_titled(part), part) for part in parts]
    return Group(group.title, members)


def _titled(part: Sequence[Group | int]) -> str:
    """What a part is called: its first and last node, or group."""
    ends = [m.title if isinstance(m, Group) else f"node {m + 1}" for m in (part[0], part[-1])]
    first, last = (e.partition(" … ")[0 if i == 0 else 2] or e for i, e in enumerate(ends))
    return (
        f"{first} … {last.removeprefix('node ')}"
        if last.startswith("node ")
        else f"{first} … {last}"
    )
