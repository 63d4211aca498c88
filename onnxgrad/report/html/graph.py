"""Graphs for the page: nodes, values, groups, and the changes between two graphs.

Every reference is an index into a list, so that a graph of thousands of nodes stays a small file.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any, TypeAlias

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.report.parts import LONGEST, cell
from onnxgrad.rewrite.trace import Rewrite
from onnxgrad.wording import printable_lines

Scope: TypeAlias = tuple[str, ...]

_TORCH = "pkg.torch.onnx.name_scopes"
_UNION = " | "  # between the values of merged nodes
_MOST = 60  # boxes in a group
_PART = 30  # boxes in each part of a larger group


def scope_of(b: Binding) -> Scope | None:
    """Returns the modules around a binding, outermost first; None if nothing names them."""
    for entry in b.node.metadata_props:
        if entry.key == _TORCH:
            return _of_torch(entry.value)
    if "/" in b.node.name:
        return tuple(part for part in b.node.name.split("/")[:-1] if part)
    return None


def _of_torch(text: str) -> Scope | None:
    """Returns the scopes of a node, or the scopes that nodes merged into one have in common."""
    found = []
    for listed in text.split(_UNION):
        try:
            names = ast.literal_eval(listed)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            return None
        # each name without the prefix of the scope around it
        pairs = pairwise(["", *names[:-1]])
        found.append(tuple(name.removeprefix(f"{outer}.") for outer, name in pairs if name))
    return _common(found)


def _common(scopes: Sequence[Scope]) -> Scope:
    """Returns the scopes with which all of them begin."""
    levels = zip(*scopes, strict=False)
    return tuple(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


@dataclass
class Group:
    """Nodes, by number, and groups, in the order of the graph."""

    title: str
    members: list[Group | int] = field(default_factory=list)


def grouped(scopes: Sequence[Scope]) -> Group:
    """Returns the groups of nodes with these scopes. Each is large enough for a box and small
    enough for a screen.
    """
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
    """Returns the group without groups of one node, and with groups that contain only one group
    replaced by that group.
    """
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
    """Returns the title of a part: its first and last node, or group."""
    ends = [m.title if isinstance(m, Group) else f"node {m + 1}" for m in (part[0], part[-1])]
    first, last = (e.partition(" … ")[0 if i == 0 else 2] or e for i, e in enumerate(ends))
    return f"{first} … {last.removeprefix('node ')}"


_MADE_BY = "onnxgrad.made_by"
_SOURCE = "pkg.torch.onnx.stack_trace"
# kinds of values, by their numbers in the page
_COMPUTED, _INPUT, _CONSTANT = 0, 1, 2
_DEEPEST = 24  # levels of groups: a name may have a thousand slashes


def shown(value: object) -> str:
    """Returns any text of a model in a form safe for the page: no control characters, limited
    length.
    """
    return str(cell(value))


class Drawn:
    """The nodes of a program in order, with those of nested graphs and functions, and their values.

    `apart`: the title of a group for the nodes whose first result is not in `known`.
    """

    def __init__(
        self, program: Program, *, apart: str = "", known: Collection[str] | None = None
    ) -> None:
        self.program = program
        self._apart, self._known = apart, known
        self.nodes: list[Binding] = []
        self.scopes: list[Scope] = []
        self._values: dict[Var, int] = {}
        self._block(program.main, ())
        for key, body in program.functions.items():
            name = "::".join(part for part in key if part)
            self._block(body, (f"function {name}",))

    def _block(self, block: BindingBlock, around: Scope) -> None:
        block.schedule()
        for v in block.inputs:
            self._value(v)
        for b in block.bindings:
            # without a scope: that of the producer of an operand, else that of the first reader
            near = [v.definition for v in b.inputs if v is not None and v.block is b.block]
            near += [u for v in b.outputs if v is not None for u in v.users]
            scopes = (scope_of(n) for n in (b, *near) if n is not None)
            scope = (*around, *next((s for s in scopes if s is not None), ()))[:_DEEPEST]
            if self._known is not None and not around and first_result(b) not in self._known:
                scope = (self._apart, *scope)
            self.nodes.append(b)
            self.scopes.append(scope)
            for attribute, nested in b.blocks.items():
                self._block(nested, (*scope, f"{b.op} {first_result(b)}", attribute))

    def _value(self, v: Var) -> int:
        return self._values.setdefault(v, len(self._values))

    def to_dict(self) -> dict[str, Any]:
        """Returns the graph in JSON's types; operands and results of a node are numbers of
        values.
        """
        main = self.program.main
        nodes = [self._node(b) for b in self.nodes]
        outputs = [self._value(v) for v in main.outputs]
        inputs = [self._value(v) for v in main.inputs if v.initializer is None]
        groups: list[list[Any]] = []
        place = [0] * len(nodes)
        _number(grouped(self.scopes), -1, groups, place)
        for node, group in zip(nodes, place, strict=True):
            node["g"] = group
        return {
            "name": shown(main.name),
            "nodes": nodes,
            "values": [[shown(v.name), shown(v.type or "?"), _kind(v)] for v in self._values],
            "groups": groups,
            "inputs": inputs,
            "outputs": outputs,
        }

    def _node(self, b: Binding) -> dict[str, Any]:
        found: dict[str, Any] = {
            "o": shown(full_name(b.domain, b.op)),
            "i": [-1 if v is None else self._value(v) for v in b.inputs],
            "r": [-1 if v is None else self._value(v) for v in b.outputs],
        }
        # values that nested graphs return; their nodes list the values that they read
        inner = [self._value(v) for block in b.blocks.values() for v in block.outputs]
        metadata = {e.key: e.value for e in b.node.metadata_props}
        optional = {
            "n": shown(b.node.name),
            "a": shown(", ".join(b.attribute_texts())),
            "k": inner,
            "m": shown(metadata.get(_MADE_BY, "")),
            "s": printable_lines(metadata.get(_SOURCE, "").strip()[:LONGEST]),
        }
        return found | {key: value for key, value in optional.items() if value}


def _kind(v: Var) -> int:
    if v.initializer is not None or (v.definition is None and not v.is_input):
        return _CONSTANT
    return _INPUT if v.definition is None else _COMPUTED


def _number(group: Group, outer: int, groups: list[list[Any]], place: list[int]) -> None:
    """Numbers the groups, outer ones first, and stores in each node the number of its group."""
    number = len(groups)
    groups.append([outer, shown(group.title)])
    for member in group.members:
        if isinstance(member, Group):
            _number(member, number, groups, place)
        else:
            place[member] = number


def first_result(b: Binding) -> str:
    """Returns the name that identifies a node in another version of the model."""
    return next((v.name for v in b.outputs if v is not None), "")


# states of nodes in the page; a node without a state is unchanged
_GONE, _NEW, _CHANGED = "removed", "added", "changed"


def compared(before: Drawn, after: Drawn, rewrites: Sequence[Rewrite] = ()) -> list[dict[str, Any]]:
    """Returns both graphs in JSON's types, each node with its state and the numbers of its
    rewrites. Nodes are matched by their first result.
    """
    sides = [{first_result(b): b for b in side.nodes} for side in (before, after)]
    graphs = [before.to_dict(), after.to_dict()]
    numbers = _rewrites(rewrites)
    for drawn, graph, other, word in zip(
        (before, after), graphs, reversed(sides), (_GONE, _NEW), strict=True
    ):
        for b, node in zip(drawn.nodes, graph["nodes"], strict=True):
            name = first_result(b)
            if name not in other:
                node["c"] = word
            elif _call(b) != _call(other[name]):
                node["c"] = _CHANGED
            if "c" in node and name in numbers:
                node["w"] = list(numbers[name])
    return graphs


def _call(b: Binding) -> tuple[Any, ...]:
    inputs = [None if v is None else v.name for v in b.inputs]
    return b.domain, b.op, b.node.overload, inputs, b.attribute_texts()


def _rewrites(rewrites: Sequence[Rewrite]) -> Mapping[str, dict[int, None]]:
    """Returns the rewrites, in order, that matched or emitted each node, by its first result's
    name.
    """
    found: dict[str, dict[int, None]] = {}
    for rewrite in rewrites:
        for name in (*rewrite.matched, *rewrite.emitted):
            found.setdefault(name, {})[rewrite.number] = None
    return found
