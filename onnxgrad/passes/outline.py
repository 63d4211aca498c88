"""Groups of bindings as local functions (TVM's FuseOps); `inline` is the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.options import Range
from onnxgrad.outlining.calls import FUNCTIONS_SINCE, File, Group, call_of, define, structure
from onnxgrad.outlining.functions import RULE as _RULE
from onnxgrad.outlining.groups import fusion_groups
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.inline import put_in_place
from onnxgrad.rewrite.trace import Trace


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
    max_size: Annotated[int, Range(1)] = 256
    min_size: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_size > self.max_size:
            raise InputError(
                f"pass '{self.name}': min_size {self.min_size} is above max_size {self.max_size}: "
                "no group would be outlined"
            )

    def run(self, program: Program, trace: Trace) -> None:
        """Outline in the main graph and its nested graphs; one firing for each group."""
        if program.ir_version < FUNCTIONS_SINCE:
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
            before, file = list(block.bindings), File.of(block)
            calls: dict[Binding, list[Binding]] = {}
            for group in fusion_groups(block, self.max_size):
                if len(group) >= self.min_size and not trace.stopped:
                    where = str(group[-1])
                    call = _outline(Group.of(group), known, file)
                    calls[group[-1]] = [call]
                    trace.of(_RULE).applied += 1
                    trace.fired(_RULE, f"{len(group)} bindings up to {where} as {call.op}")
            if calls:
                put_in_place(block, before, calls)


def _outline(group: Group, known: dict[Any, FunctionKey], file: File) -> Binding:
    """Replace a group by a call of the function that has its structure."""
    key = structure(group, file)
    if key not in known:
        known[key] = define(group, file)
    return call_of(group, known[key][1], file)
