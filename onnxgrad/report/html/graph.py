"""A program as boxes and lines: nodes, values and groups, as the page draws them.

Everything is a number into a list, so that a graph of thousands of nodes stays a small file.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.report.html.scopes import Group, Scope, grouped, scope_of
from onnxgrad.report.parts import LONGEST, cell
from onnxgrad.wording import printable_lines

_MADE_BY = "onnxgrad.made_by"
_SOURCE = "pkg.torch.onnx.stack_trace"
# what a value is, in the page's numbers
_COMPUTED, _INPUT, _CONSTANT = 0, 1, 2
_DEEPEST = 24  # groups inside each other: a name may have a thousand slashes


def shown(value: object) -> str:
    """Any text of a model as the page may hold it: no control characters, not endless."""
    return str(cell(value))


class Drawn:
    """The nodes of a program in order, nested graphs and functions included, and their values.

    `apart`: the title of a group for the nodes whose first result is none of `known`.
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
            own = scope_of(b)
            scope = (*around, *(self._neighbours(b) if own is None else own))[:_DEEPEST]
            if self._known is not None and not around and first_result(b) not in self._known:
                scope = (self._apart, *scope)
            self.nodes.append(b)
            self.scopes.append(scope)
            for attribute, nested in b.blocks.items():
                self._block(nested, (*scope, f"{b.op} {first_result(b)}", attribute))

    def _neighbours(self, b: Binding) -> Scope:
        """The scope of what computes an operand of a binding that has none; else that of its first
        reader.
        """
        near = [v.definition for v in b.inputs if v is not None and v.block is b.block]
        near += [u for v in b.outputs if v is not None for u in v.users]
        return next((s for n in near if n is not None and (s := scope_of(n)) is not None), ())

    def _value(self, v: Var) -> int:
        return self._values.setdefault(v, len(self._values))

    def to_dict(self) -> dict[str, Any]:
        """JSON's types; each node says what it reads and gives by the numbers of values."""
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
        # what nested graphs read comes in by their own nodes; what they return goes here
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
    """Give the groups numbers, outer ones first, and each node that of its own."""
    number = len(groups)
    groups.append([outer, shown(group.title)])
    for member in group.members:
        if isinstance(member, Group):
            _number(member, number, groups, place)
        else:
            place[member] = number


def first_result(b: Binding) -> str:
    """What a node is known by in another version of the model."""
    return next((v.name for v in b.outputs if v is not None), "")
