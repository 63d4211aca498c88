"""Unused bindings and constants, and local functions that no call reaches (Relay's
RemoveUnusedFunctions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from onnxgrad.ir import domains
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.protobufs import every_node
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class RemoveUnused(Pass):
    """y = f(x), y unused: removed; so are initializers that nothing reads. Graph inputs always
    stay.
    """

    name: ClassVar[str] = "remove-unused"

    def run(self, program: Program, trace: Trace) -> None:
        """Remove unused bindings and initializers everywhere; one rewrite for each kind in each
        block.
        """
        for root in roots(program):
            # inner blocks first: what they no longer capture may be unused outside
            for block in reversed(blocks_in(root)):
                if trace.stopped:
                    return
                bindings = block.remove_unused()
                # below IR 4 an initializer that is an input is its default, so it is part of the
                # interface as well
                unused = [v for v in block.initializers.values() if not (v.use_count or v.is_input)]
                for v in unused:
                    block.remove_initializer(v)
                for kind, removed in (("binding", bindings), ("initializer", len(unused))):
                    if removed:
                        trace.fired(f"unused_{kind}", f"{removed} in {block.name}", count=removed)
                # a law meets a constant at its readers; only a branch is looked at as a whole
                trace.unseen += bool(unused) and block.owner is None


def names_function(pattern: str, key: FunctionKey) -> bool:
    """Whether `name`, `domain::name` or `domain::name::overload`, with `*` and `?`, means this
    function.
    """
    domain, name, overload = key
    return any(
        fnmatchcase(form, pattern)
        for form in (name, f"{domain}::{name}", f"{domain}::{name}::{overload}")
    )


def reachable(program: Program, entries: Iterable[FunctionKey] = ()) -> set[FunctionKey]:
    """The functions that calls reach from the main graph, its nested graphs, training_info, and
    `entries`.
    """
    found: set[FunctionKey] = set()
    work = [*entries, *(key for b in program.main.walk() if (key := called(b)) is not None)]
    for info in program.proto.training_info:
        for graph in (info.initialization, info.algorithm):
            for node in every_node(graph.node):
                spellings = dict.fromkeys([node.domain, domains.canonical(node.domain)])
                keys = [(domain, node.op_type, node.overload) for domain in spellings]
                work += [key for key in keys if key in program.functions]
    while work:
        key = work.pop()
        if key not in found:
            found.add(key)
            work += [
                inner for b in program.functions[key].walk() if (inner := called(b)) is not None
            ]
    return found


@register
@dataclass(frozen=True)
class RemoveUnusedFunctions(Pass):
    """Removes functions that no call reaches from the main graph, its nested graphs or
    training_info.

    `keep`: names or patterns, separated by spaces, of functions to keep as entries.
    """

    name: ClassVar[str] = "remove-unused-functions"
    keep: str = ""

    def run(self, program: Program, trace: Trace) -> None:
        """Mark from the roots, delete the rest; one rewrite for each function."""
        if not program.functions:
            return
        patterns = self.keep.split()
        entries = [
            key for key in program.functions if any(names_function(p, key) for p in patterns)
        ]
        used = reachable(program, entries)
        for key in [k for k in program.functions if k not in used]:
            if trace.stopped:
                return
            del program.functions[key]
            trace.fired("unused_function", "::".join(part for part in key if part))
