"""Replaces calls by the bodies of their functions (Relay's Inline)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

import onnx
from onnx import FunctionProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.function_bodies import (
    Body,
    body_of,
    called,
    callees,
    conflict,
    expanded_size,
    expanded_sizes,
    functions_callees_first,
    has_schema_body,
    open_in_place,
    take_names,
    wrong_shape,
)
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.protobufs import every_node
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Builder, lower
from onnxgrad.name_lists import names_among
from onnxgrad.options import Range
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.passes.outlined_functions import (
    KEY,
    MADE_BY,
    Origin,
    declare_copies,
    origins,
    restore_names,
    restore_order,
)
from onnxgrad.passes.remove_unused import forms_of, names_function, reachable
from onnxgrad.rewrite.trace import Trace
from onnxgrad.wording import did_you_mean, option

_MARK = "onnxgrad.inline"
_RULE = "inline_call"


@register
@frozen
class Inline(Pass):
    """y = f(x), f marked: the body of f in its place, callees first; the definition goes when no
    call is left.

    A function is inlined if its metadata has `onnxgrad.inline=1` or if `names` matches it (names or
    patterns separated by spaces or commas: `f`, `domain::f`, `*`), unless it is recursive or calls
    a function that is not inlined. `names` may also name an operator with a body: one whose schema
    has a function, most of com.microsoft, and those with a body of the caller's (`onnxgrad.body`).
    `max_nodes` bounds the result before anything is expanded.
    """

    name: ClassVar[str] = "inline"
    names: str = ""
    max_nodes: Annotated[int, Range(1)] = 200_000

    def run(self, program: Program, trace: Trace) -> None:
        """Inlines in every function, then in the main graph. Raises InputError if a graph would
        pass `max_nodes`.
        """
        patterns = patterns_of(program, self.names)
        order = self._inlinable(program, patterns, trace)
        sizes = expanded_sizes(program, order)
        for block in roots(program):
            size = expanded_size(block.walk(), sizes)
            if size > self.max_nodes:
                raise InputError(
                    f"inlining would give graph '{block.name}' {size} nodes, more than "
                    f"max_nodes={self.max_nodes}: name fewer functions, or raise the bound"
                )
        before = reachable(program)
        bindings = (b for block in program.blocks() for b in block.bindings)
        opened = [b.domain for b in bindings if b.domain and _is_named(b, patterns)]
        inlined = set(order)
        others = (block for key, block in program.functions.items() if key not in inlined)
        for block in [*(program.functions[key] for key in order), *others, program.main]:
            self._open_all(block, inlined, patterns, trace)
        left = reachable(program)
        # functions that had no calls before stay
        gone = [key for key in order if key in before and key not in left]
        for key in gone:
            del program.functions[key]
        for domain in dict.fromkeys([*(key[0] for key in gone), *opened]):
            _drop_import(program, domain)

    def _inlinable(
        self, program: Program, patterns: Sequence[str], trace: Trace
    ) -> list[FunctionKey]:
        chosen: dict[FunctionKey, None] = {}
        order = functions_callees_first(program)
        reached = set(order)
        for key in program.functions:
            if key not in reached and self._marked(program, key, patterns):
                trace.missed(_RULE, "::".join(filter(None, key)), "it is recursive")
        for key in order:
            if not self._marked(program, key, patterns):
                continue
            other = sorted(c for c in callees(program.functions[key]) if c not in chosen)
            if other:
                trace.missed(
                    _RULE,
                    "::".join(filter(None, key)),
                    f"it calls '{other[0][1]}', which is not inlined",
                )
                continue
            chosen[key] = None
        return list(chosen)

    def _marked(self, program: Program, key: FunctionKey, patterns: Sequence[str]) -> bool:
        proto = program.functions[key].proto
        marked = isinstance(proto, FunctionProto) and any(
            e.key == _MARK and e.value == "1" for e in proto.metadata_props
        )
        return marked or any(names_function(p, key) for p in patterns)

    def _open_all(
        self,
        root: BindingBlock,
        inlined: set[FunctionKey],
        patterns: Sequence[str],
        trace: Trace,
    ) -> None:
        work = [root]
        found: dict[Binding, Origin] = {}
        results: set[Var] = set()
        while work:
            block = work.pop()
            opened: dict[Binding, list[Binding]] = {}
            before = list(block.bindings)
            pending = list(before)
            for b in pending:  # grows: a body may contain operators that `names` matches
                key = called(b)
                if not ((key in inlined) if key is not None else _is_named(b, patterns)):
                    continue
                done = None if trace.stopped else _open(b, trace)
                if done is None:
                    continue
                copies, ends = done
                opened[b] = copies
                # a body of the caller's may contain its operator
                pending += [c for c in copies if (c.domain, c.op) != (b.domain, b.op)]
                members = origins(b.node)
                if members is not None and len(members) == len(copies):
                    found.update(zip(copies, members, strict=True))
                    results |= ends
            if opened:
                put_in_place(block, before, opened)
                restore_order(block, found)
            work += [nested for b in block.bindings for nested in b.blocks.values()]
        if found:
            restore_names(root, {b: o for b, o in found.items() if b.is_live}, results)


def patterns_of(program: Program, names: str) -> tuple[str, ...]:
    """Returns the patterns in a text, separated by spaces or commas; the name of a function or an
    operator may contain commas.
    """
    known = {form for key in program.functions for form in forms_of(key)}
    known |= {b.op for block in program.blocks() for b in block.bindings}
    return names_among(names.split(), known, "inline")


def check_names(program: Program, names: Sequence[str]) -> None:
    """Raises InputError for a name or pattern that matches no function of the program and no
    operator with a body. `*` is always accepted.
    """
    for pattern in patterns_of(program, " ".join(names)):
        named = any(names_function(pattern, key) for key in program.functions)
        bindings = (b for block in program.blocks() for b in block.bindings)
        if pattern == "*" or named or any(_is_named(b, [pattern]) for b in bindings):
            continue
        known = ["::".join(filter(None, key)) for key in program.functions]
        known += [key[1] for key in program.functions]
        otherwise = f"it has {known[0]}, ..." if known else "it has no local functions"
        raise InputError(
            f"{option('--inline', 'inline:')} {pattern} matches no function of the model and no "
            f"operator that has a body; {did_you_mean(pattern, known, otherwise)}"
        )


def _is_named(b: Binding, patterns: Sequence[str]) -> bool:
    named = any(
        fnmatchcase(form, p) for p in patterns if p != "*" for form in (b.op, f"{b.domain}::{b.op}")
    )
    return named and not b.has_refs and (has_schema_body(b) or _builder(b) is not None)


def _builder(b: Binding) -> Builder | None:
    """Returns what emits the body of an operator in the table of bodies."""
    from onnxgrad.laws.bodies.table import BODIES

    found = None if called(b) or has_schema_body(b) else BODIES.get((b.domain, b.op))
    return None if found is None else found[0]


def _lower(b: Binding, builder: Builder, trace: Trace) -> tuple[list[Binding], set[Var]]:
    """Replaces a call by its body of the table. Raises InputError if the call stays."""
    where, block, names = str(b), b.block, {v: v.name for v in b.outputs if v is not None}
    before = set(block.bindings)
    stands = lower(b, builder)
    made = [new for new in block.bindings if new not in before]
    take_names(stands, names, made)
    trace.of(_RULE).matched += 1
    trace.rounded = True
    trace.fired(_RULE, where)
    return made, set(stands.values())


def _open(b: Binding, trace: Trace) -> tuple[list[Binding], set[Var]] | None:
    """Replaces a call by a copy of its body. Returns the copied bindings and the values that
    replace the call's results; None if the call stays.
    """
    where = str(b)
    trace.of(_RULE).tried += 1
    try:
        if (builder := _builder(b)) is not None:
            return _lower(b, builder, trace)
        body = body_of(b)
    except InputError as e:
        trace.missed(_RULE, where, str(e))
        return None
    trace.of(_RULE).matched += 1
    reason = conflict(b, body) or _unbound(b, body) or wrong_shape(b, body)
    if reason is not None:
        trace.missed(_RULE, where, reason)
        return None
    try:
        opened, ends = open_in_place(b, body, without=(MADE_BY, KEY))
    except InputError as e:
        trace.missed(_RULE, where, str(e))
        return None
    # the body of a schema rounds its constants (sqrt(2/pi), ...) to the operand's dtype
    trace.rounded |= body.key is None
    declare_copies(body.block, opened)
    trace.fired(_RULE, where)
    return opened, ends


def _unbound(b: Binding, body: Body) -> str | None:
    """Why a call cannot be inlined, or None. It may pass on an attribute of the enclosing function
    that is absent there. Then the default of the called function applies, and a node of the inlined
    body cannot express that."""
    callee, caller = body.block.proto, b.block.root.proto
    if (
        not b.has_refs
        or not isinstance(callee, FunctionProto)
        or not isinstance(caller, FunctionProto)
    ):
        return None
    defaults = {a.name for a in callee.attribute_proto}
    always = {a.name for a in caller.attribute_proto}
    lost = [
        a.name
        for a in b.node.attribute
        if a.ref_attr_name and a.name in defaults and a.ref_attr_name not in always
    ]
    return (
        f"attribute '{lost[0]}' is passed on by reference and has its own default" if lost else None
    )


def put_in_place(
    block: BindingBlock, before: list[Binding], opened: dict[Binding, list[Binding]]
) -> None:
    """Restores the order `before` of a block: the bindings of a body take the place of their call,
    and other new bindings come last.
    """
    placed: dict[Binding, None] = {}
    work = before[::-1]
    while work:
        b = work.pop()
        if b in opened:
            work += opened[b][::-1]
        elif b in block.bindings:
            placed[b] = None
    block.bindings = placed | block.bindings


def _drop_import(program: Program, domain: str) -> None:
    """Removes the import of a removed function's domain if nothing else uses the domain and it has
    no operators of its own.
    """
    used = {key[0] for key in program.functions}
    used.update(b.domain for block in program.blocks() for b in block.bindings)
    for info in program.proto.training_info:
        used.update(
            n.domain for g in (info.initialization, info.algorithm) for n in every_node(g.node)
        )
    if domain not in used and not any(s.domain == domain for s in onnx.defs.get_all_schemas()):
        program.opsets.pop(domain, None)
