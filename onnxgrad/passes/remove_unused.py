"""Removes unused bindings and constants, local functions without a call (Relay's
RemoveUnusedFunctions), and unread operands and results of functions (Relax's RemoveUnusedParameters
and RemoveUnusedOutputs).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar

import onnx
from onnx import FunctionProto

from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.function_bodies import called, functions_callees_first
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.protobufs import copy_of, every_node
from onnxgrad.name_lists import fits
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.trace import Trace


@register
@frozen
class RemoveUnused(Pass):
    """y = f(x), y unused: removed; so are initializers that nothing reads. Graph inputs always
    stay.
    """

    name: ClassVar[str] = "remove-unused"

    def run(self, program: Program, trace: Trace) -> None:
        """Removes unused bindings and initializers everywhere; one rewrite for each kind in each
        block.
        """
        for root in roots(program):
            # inner blocks first: what they no longer capture may be unused outside
            for block in reversed(blocks_in(root)):
                if trace.stopped:
                    return
                bindings = block.remove_unused()
                # below IR 4 an initializer that is an input is the input's default value, and so
                # part of the interface
                unused = [v for v in block.initializers.values() if not (v.use_count or v.is_input)]
                for v in unused:
                    block.remove_initializer(v)
                for kind, removed in (("binding", bindings), ("initializer", len(unused))):
                    if removed:
                        trace.fired(f"unused_{kind}", f"{removed} in {block.name}", count=removed)
                # rules see a constant at its readers only, but a nested block as a whole
                trace.unseen += bool(unused) and block.owner is None


def names_function(pattern: str, key: FunctionKey) -> bool:
    """Whether a pattern matches this function: `name`, `domain::name` or `domain::name::overload`,
    with `*` and `?`.
    """
    return any(fits(form, pattern) for form in forms_of(key))


def forms_of(key: FunctionKey) -> tuple[str, str, str]:
    """Returns the names by which a user may refer to a function."""
    domain, name, overload = key
    return name, f"{domain}::{name}", f"{domain}::{name}::{overload}"


def reachable(program: Program, entries: Iterable[FunctionKey] = ()) -> set[FunctionKey]:
    """The functions that calls reach from the main graph, its nested graphs, training_info, and
    `entries`.
    """
    found: set[FunctionKey] = set()
    work = [*entries, *(key for b in program.main.walk() if (key := called(b)) is not None)]
    work += _called_in_training(program)
    while work:
        key = work.pop()
        if key not in found:
            found.add(key)
            work += [
                inner for b in program.functions[key].walk() if (inner := called(b)) is not None
            ]
    return found


@register
@frozen
class RemoveUnusedFunctions(Pass):
    """Removes functions that no call reaches from the main graph, its nested graphs or
    training_info.

    `keep`: names or patterns, separated by spaces, of functions to keep as entries.
    """

    name: ClassVar[str] = "remove-unused-functions"
    keep: str = ""

    def run(self, program: Program, trace: Trace) -> None:
        """Removes the functions that no root reaches; one rewrite for each function."""
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


@register
@frozen
class RemoveUnusedParameters(Pass):
    """f(x, y, z) = g(x, z), y unused in f: operands and attributes that a local function never
    reads go, and results that no call reads.

    A function keeps its signature if training_info calls it, if a domain of onnx or onnxruntime has
    the name (a runtime may have the operator), or if `keep` matches it (names or patterns separated
    by spaces).
    """

    name: ClassVar[str] = "remove-unused-parameters"
    keep: str = ""

    def run(self, program: Program, trace: Trace) -> None:
        """Removes until nothing changes; one rewrite for each operand, attribute and result."""
        patterns = self.keep.split()
        fixed = _called_in_training(program)
        own = [
            key
            for key in functions_callees_first(program)
            if key not in fixed
            and not _is_of_a_runtime(key[0])
            and not any(names_function(p, key) for p in patterns)
        ]
        before = -1
        while own and before < (before := len(trace.rewrites)):
            calls: dict[FunctionKey, list[Binding]] = {}
            for block in program.blocks():
                for b in block.bindings:
                    if (key := called(b)) is not None:
                        calls.setdefault(key, []).append(b)
            # results from the callers inwards, operands from the innermost function outwards
            for work, order in ((_drop_results, own[::-1]), (_drop_operands, own)):
                for key in order:
                    live = [b for b in calls.get(key, ()) if b.is_live]
                    if live:
                        work(program.functions[key], live, "::".join(key[:2]), trace)


_PARAMETER = "unused_parameter"
# domains in which a runtime knows operators that have no schema here
_RUNTIME_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms")


@lru_cache(maxsize=256)
def _is_of_a_runtime(domain: str) -> bool:
    return domain.startswith(_RUNTIME_DOMAINS) or any(
        s.domain == domain for s in onnx.defs.get_all_schemas()
    )


def _drop_results(body: BindingBlock, calls: list[Binding], name: str, trace: Trace) -> None:
    for i in reversed(range(len(body.outputs))):
        results = [r for b in calls if (r := b.result(i)) is not None]
        if trace.stopped or len(body.outputs) == 1 or any(r.users or r.returned for r in results):
            continue
        body.note_frame()
        out = body.outputs.pop(i)
        out.returned -= 1
        for b in calls:
            b.drop_result(i)
        body.remove_unused()
        body.touch()
        trace.fired(_PARAMETER, f"result '{out.name}' of {name}")


def _drop_operands(body: BindingBlock, calls: list[Binding], name: str, trace: Trace) -> None:
    for i in reversed(range(len(body.inputs))):
        v = body.inputs[i]
        if trace.stopped or v.use_count:
            continue
        body.note_frame()
        del body.inputs[i]
        for b in calls:
            b.block.set_operands(b, [*b.inputs[:i], *b.inputs[i + 1 :]])
        body.touch()
        trace.fired(_PARAMETER, f"operand '{v.name}' of {name}")
    _drop_attributes(body, calls, name, trace)


def _drop_attributes(body: BindingBlock, calls: list[Binding], name: str, trace: Trace) -> None:
    proto = body.proto
    if not isinstance(proto, FunctionProto):
        return
    read = {a.ref_attr_name for b in body.walk() for a in b.node.attribute}
    declared = [*proto.attribute, *(a.name for a in proto.attribute_proto)]
    for attribute in [a for a in declared if a not in read]:
        if trace.stopped:
            return
        narrow = copy_of(proto)
        names = [a for a in proto.attribute if a != attribute]
        defaults = [a for a in proto.attribute_proto if a.name != attribute]
        del narrow.attribute[:], narrow.attribute_proto[:]
        narrow.attribute.extend(names)
        narrow.attribute_proto.extend(defaults)
        body.proto = proto = narrow
        for b in calls:
            if attribute in b.attrs:
                b.drop_attribute(attribute)
        trace.fired(_PARAMETER, f"attribute '{attribute}' of {name}")


def _called_in_training(program: Program) -> set[FunctionKey]:
    """The functions that training_info calls directly. It is kept as protobufs."""
    infos = program.proto.training_info
    nodes = [n for i in infos for g in (i.initialization, i.algorithm) for n in every_node(g.node)]
    named = {
        (d, n.op_type, n.overload) for n in nodes for d in (n.domain, domains.canonical(n.domain))
    }
    return named & set(program.functions)
