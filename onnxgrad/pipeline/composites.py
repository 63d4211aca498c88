"""A user's composites put into a program: calls in place of matches, and bodies that only the proof
needs.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from onnx import ValueInfoProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.types import type_to_proto
from onnxgrad.outlining.calls import FUNCTIONS_SINCE, File, Group, call_of, define, structure
from onnxgrad.outlining.composites import Composite, group_at
from onnxgrad.passes.base import nested
from onnxgrad.passes.inline import put_in_place
from onnxgrad.rewrite.trace import Decline, Trace, decline

# the functions that a program has of a composite, by what they compute; rounds of passes add to
# them
_Known = dict[tuple[Composite, Any], FunctionKey]
_KNOWN: WeakKeyDictionary[Program, _Known] = WeakKeyDictionary()


def outline(composite: Composite, program: Program, trace: Trace) -> None:
    """Every match in the main graph and its nested graphs becomes a call; one firing each.

    Bodies of functions are left alone, as by the pass `outline`.
    """
    rule = f"outline_as {composite.name}"
    if program.ir_version < FUNCTIONS_SINCE:
        trace.missed(rule, program.main.name, f"IR version {program.ir_version} has no functions")
        return
    known = _KNOWN.setdefault(program, {})
    for block in [program.main, *nested(program.main)]:
        _outline(composite, block, known, trace, rule)


def _outline(
    composite: Composite, block: BindingBlock, known: _Known, trace: Trace, rule: str
) -> None:
    block.schedule()
    before, file = list(block.bindings), File.of(block)
    calls: dict[Binding, list[Binding]] = {}
    for root in reversed(before):  # from the end, so that of a chain the longest part is taken
        if trace.stopped or not root.is_live or root in calls:
            continue
        trace.of(rule).tried += 1
        where = str(root)
        try:
            group = group_at(composite, root, file.position)
            if group is None:
                continue
            trace.of(rule).matched += 1
            call = call_of(group, _function(composite, group, file, known), file)
        except Decline as declined:
            trace.missed(rule, where, declined.reason)
            continue
        calls[root] = [call]
        trace.of(rule).applied += 1
        trace.fired(rule, f"{len(group.members)} bindings up to {where}")
    if calls:
        put_in_place(block, before, calls)


def _function(composite: Composite, group: Group, file: File, known: _Known) -> str:
    """The name of the function for a group. Raises Decline where another has the name already and
    there will be no body to tell them apart.
    """
    program = group.block.program
    key = (composite, structure(group, file))
    if key not in known:
        name = _free(program, group.domain, composite.name)
        if name != composite.name and not composite.body:
            raise decline(
                "it differs from an earlier match under the same name: capture the attributes "
                "that differ, or describe each form by a pattern of its own"
            )
        known[key] = define(group, file, name)
    return known[key][1]


def _free(program: Program, domain: str, name: str) -> str:
    taken = {k[1] for k in program.functions if k[0] == domain}
    return next(n for i in count(1) if (n := name if i == 1 else f"{name}_{i}") not in taken)


def leave_out_body(composite: Composite, program: Program) -> None:
    """After the proof: calls of an operator that the runtime has, their results' types declared,
    and no function.
    """
    mine = {k for (c, _), k in _KNOWN.get(program, {}).items() if c is composite}
    for block in program.blocks():
        for b in block.bindings:
            if (b.domain, b.op, "") in mine:
                block.declared[b.out] = ValueInfoProto(
                    name=b.out.name, type=type_to_proto(b.out.type)
                )
                block.touch()
    for key in mine:
        program.functions.pop(key, None)
