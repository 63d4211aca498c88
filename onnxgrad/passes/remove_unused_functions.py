"""Local functions that no call reaches (Relay's RemoveUnusedFunctions)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from onnx import NodeProto

from onnxgrad.ir import domains
from onnxgrad.ir.bodies import called
from onnxgrad.ir.nodes import every_node
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.passes.base import Pass, register
from onnxgrad.rewrite.trace import Trace


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
                work += [key for key in _keys(node) if key in program.functions]
    while work:
        key = work.pop()
        if key not in found:
            found.add(key)
            work += [
                inner for b in program.functions[key].walk() if (inner := called(b)) is not None
            ]
    return found


def _keys(node: NodeProto) -> Iterator[FunctionKey]:
    for domain in dict.fromkeys([node.domain, domains.canonical(node.domain)]):
        yield (domain, node.op_type, node.overload)


@register
@dataclass(frozen=True)
class RemoveUnusedFunctions(Pass):
    """A function that no call reaches from the main graph, its nested graphs or training_info:
    gone.

    `keep`: names or patterns, separated by spaces, of functions that are entries of their own and
    stay.
    """

    name: ClassVar[str] = "remove-unused-functions"
    keep: str = ""

    def run(self, program: Program, trace: Trace) -> None:
        """Mark from the roots, delete the rest; one firing for each function."""
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
            trace.of("unused_function").applied += 1
            trace.fired("unused_function", "::".join(part for part in key if part))
