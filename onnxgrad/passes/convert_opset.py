"""Converts a program to another opset of the default domain, step by step, in place.

Each step changes the operators that are new in that version, by `laws.raise_opset` and
`laws.lower_opset`. If an operator has no form in that version, `laws.opened_operators` replaces it
by its function body, which is converted in turn. An operator without a body is refused. Nested
graphs have the opset of their graph. Functions have their own opset, which is converted as well.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from onnx import FunctionProto, helper
from onnx.defs import OpSchema

from onnxgrad.errors import InputError, InternalError, UnknownDtype
from onnxgrad.frozen import frozen
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.attributes import RefAttr, is_of_onnxruntime
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.types import dtype_name
from onnxgrad.laws.lower_opset import lower
from onnxgrad.laws.opened_operators import open_operator
from onnxgrad.laws.raise_opset import ADAPTERS, Refused, refuse_if
from onnxgrad.passes.base import Count, Pass, Provider, register
from onnxgrad.passes.served_opsets import newer_chains, newest_served, type_name
from onnxgrad.rewrite.trace import Trace
from onnxgrad.wording import counted

Formal = OpSchema.FormalParameter
_SINGLE, _OPTIONAL = OpSchema.FormalParameterOption.Single, OpSchema.FormalParameterOption.Optional


@lru_cache(maxsize=1024)
def since(op: str, version: int) -> int:
    """The version that introduced the form of `op` that is valid at `version`; 0 if unknown."""
    schema = attributes.schema(op, version, "")
    return 0 if schema is None else int(schema.since_version)


@lru_cache(maxsize=1024)
def form_changes(op: str, old: int, new: int) -> str:
    """The first difference between the schemas that makes a valid form of version `old` invalid at
    `new`: in an operand, a result or an attribute. Empty if there is none.
    """
    before, after = attributes.schema(op, old, ""), attributes.schema(op, new, "")
    if before is None and after is not None and is_of_onnxruntime(op, old):
        return ""
    if before is None or after is None:
        return f"{op} is unknown at opset {old if before is None else new}"
    if after.deprecated:
        return f"{op} is deprecated"
    return next(_form_changes(before, after), "")


def _form_changes(before: OpSchema, after: OpSchema) -> Iterator[str]:
    yield from _formal_changes("operand", list(before.inputs), list(after.inputs))
    yield from _formal_changes("result", list(before.outputs), list(after.outputs))
    for name, a in before.attributes.items():
        kept = after.attributes.get(name)
        if kept is None:
            yield f"attribute '{name}' went"
        elif kept.default_value != a.default_value and not a.required:
            yield f"the default of '{name}' changed"
    for name, a in after.attributes.items():
        if a.required and name not in before.attributes:
            yield f"attribute '{name}' came"


def _formal_changes(kind: str, old: list[Formal], new: list[Formal]) -> Iterator[str]:
    for i, p in enumerate(old):
        if i >= len(new) or new[i].name != p.name:
            yield f"{kind} '{p.name}' went"
        elif new[i].option not in (p.option, _OPTIONAL if p.option == _SINGLE else p.option):
            yield f"{kind} '{p.name}' is needed"
    if any(p.option == _SINGLE for p in new[len(old) :]):
        yield f"a {kind} came"


def dtype_lost(b: Binding, version: int) -> str:
    """The first operand or result whose dtype the operator does not accept at `version`; "" if
    there is none.
    """
    schema = attributes.schema(b.op, version, "")
    if schema is None:
        return ""
    for values, formals in ((b.inputs, schema.inputs), (b.outputs, schema.outputs)):
        for i, v in enumerate(values):
            name = None if v is None else type_name(v.type)
            if v is None or not name or not formals:
                continue
            if name not in formals[min(i, len(formals) - 1)].types:
                return (
                    f"it does not accept {v.type if v.dtype == 0 else dtype_name(v.dtype)} as "
                    f"'{v.name}'"
                )
    return ""


# the oldest opset that can be converted: operators of older ones broadcast in another way
OLDEST = 7
# the newest opset that a released runtime guarantees to support (onnxruntime 1.32; 1.31 supports
# 26), and the newest IR version that it reads
NEWEST, NEWEST_IR = 28, 14
_WEIGHTS_ARE_NO_INPUTS = 4
# the IR version that is written for models below IR 4
_COMMON_IR = 8


@dataclass
class Done:
    """The conversions made, in words, and how often each operator was replaced by its body."""

    rewritten: list[str] = field(default_factory=list)
    opened: Counter[str] = field(default_factory=Counter)
    emitted: list[Binding] = field(default_factory=list)  # in the step that is under way

    def add(self, other: Done) -> None:
        """Adds the conversions of another graph or function."""
        self.rewritten += other.rewritten
        self.opened += other.opened


def convert(program: Program, to: int) -> Done:
    """Brings the program, its nested graphs and its functions to opset `to`.

    Raises InputError if an operator has neither a form nor a body at the new opset, and if an opset
    is not between 7 and 28. Do not use the program after an error.
    """
    if not OLDEST <= to <= NEWEST:
        raise InputError(
            f"opset {to} is not between {OLDEST} and {NEWEST}: onnxgrad converts between these "
            "versions only, and runtimes support no newer one"
        )
    if 0 < program.opset < OLDEST and program.opset != to:
        raise InputError(
            f"the model's opset {program.opset} is below {OLDEST}, the oldest that can be "
            "converted: export the model again at a newer opset"
        )
    done = Done()
    if to > program.opset:
        hide_weight_inputs(program)
        program.ir_version = max(program.ir_version, ir_version_of(to))
    start = program.opsets.setdefault("", to)
    done.add(_convert_block(program.main, to))
    for function in program.functions.values():
        own = function.opsets.get("")
        # a function whose opset is beyond `to` already keeps it
        if own is not None and (own < to if start < to else own > to):
            done.add(_convert_block(function, to))
    return done


def ir_version_of(opset: int) -> int:
    """The IR version that came with an opset, but none newer than runtimes read."""
    found = helper.find_min_ir_version_for([helper.make_opsetid("", opset)], ignore_unknown=True)
    return min(int(found), NEWEST_IR)


def hide_weight_inputs(program: Program, *, overridable: bool = False) -> None:
    """Removes weights from the inputs. Below IR 4 a weight had to be listed there, and callers
    could not feed it; from IR 4 on they could: these are removed only if `overridable`.
    """
    if program.ir_version < _WEIGHTS_ARE_NO_INPUTS:
        program.ir_version = _COMMON_IR
    elif not overridable:
        return
    _bind(program)


def _bind(program: Program) -> int:
    """Removes the inputs that have an initializer. Returns their number."""
    block = program.main
    bound = [v for v in block.inputs if v.initializer is not None]
    for v in bound:
        block.inputs.remove(v)
        v.is_input = False
    if bound:
        block.touch()
    return len(bound)


@register
@frozen
class BindDefaults(Pass):
    """f(x, w) = f(x) at the default of w: inputs that have an initializer become constants, which
    other passes fold.

    Below IR 4, no caller can override them: onnxruntime lists no such input there. Only these are
    bound unless `overridable`. The IR version becomes 4 if it is lower.
    """

    name: ClassVar[str] = "bind-defaults"
    overridable: bool = True

    def run(self, program: Program, trace: Trace) -> None:
        """Removes the inputs; one rewrite for all of them."""
        old = program.ir_version < _WEIGHTS_ARE_NO_INPUTS
        inputs = [v for v in program.main.inputs if v.initializer is not None]
        if not inputs or trace.stopped or not (old or self.overridable):
            return
        program.ir_version = max(program.ir_version, _WEIGHTS_ARE_NO_INPUTS)
        number = _bind(program)
        trace.fired("bind_defaults", f"{number} of {program.main.name}", count=number)
        made = "a constant" if number == 1 else "constants"
        weights = f"{counted(number, 'input')} with an initializer became {made}"
        why = ", because no caller can override these below IR 4" if old else ""
        trace.notes[f"{weights}{why}"] = None

    def stated(self, model: Any, trace: Trace, provider: str) -> Any:
        """The original without these inputs."""
        if not self.overridable or all(r.rule != "bind_defaults" for r in trace.rewrites):
            return model
        program = load(model)
        hide_weight_inputs(program, overridable=True)
        return program


def _convert_block(root: BindingBlock, to: int) -> Done:
    """Converts one graph or function and the graphs nested in it."""
    done = Done()
    start = root.opsets.get("", to)
    set_opset(root, start)
    waiting: _Waiting = {}
    for b in root.walk():
        _wait(b, waiting)
    step = 1 if to > start else -1
    for version in range(start, to, step):
        set_opset(root, version + step)
        _convert_step(waiting, version, version + step, done)
    return done


# bindings of the default domain by operator: a step visits only operators that changed
_Waiting = dict[str, list[Binding]]


def _wait(b: Binding, waiting: _Waiting) -> None:
    if b.domain == "" and called(b) is None:
        waiting.setdefault(b.op, []).append(b)


def _convert_step(waiting: _Waiting, before: int, after: int, done: Done) -> None:
    changed = max(before, after)
    work = deque(b for n in list(waiting) if _changes(n, changed) for b in waiting.pop(n))
    while work:
        b = work.popleft()
        if not b.is_live:
            continue
        name, opened = b.op, _at(b, before, after, done)
        done.opened.update([name] if opened else [])
        # its operator may have changed; new bindings have the version of this step
        for new in (b, *done.emitted):
            if new.is_live:
                _wait(new, waiting)
        done.emitted.clear()
        for inner in opened:
            if _changes(inner.op, changed):
                work.append(inner)
            else:
                _wait(inner, waiting)


def _changes(op: str, version: int) -> bool:
    return since(op, version) != since(op, version - 1)


def _at(b: Binding, before: int, after: int, done: Done) -> list[Binding]:
    """Converts `b`, or replaces it by the bindings of its body if it cannot be converted. Returns
    these bindings, which are of opset `before`. Raises InputError if neither is possible.
    """
    name, node, operands = b.op, b.node, list(b.inputs)
    opened: list[Binding] | None = None
    try:
        try:
            changed = _rewritten(b, before, after, done)
        except (Refused, UnknownDtype):
            if not b.is_live or b.node is not node or b.inputs != operands:
                raise  # it was partly converted, so its body no longer applies
            opened = open_operator(b, before)
            if opened is None:
                raise
            changed = True
            lost = next((x for inner in opened if (x := dtype_lost(inner, before))), "")
            refuse_if(lost, f"its body cannot replace it: {lost}")
    except (Refused, UnknownDtype) as reason:
        raise InputError(
            f"'{b}' of opset {before} cannot be converted to {after}: {reason}"
        ) from None
    if changed:
        done.rewritten.append(f"{name} of opset {before} at {after}: {b}")
    return opened or []


def _rewritten(b: Binding, before: int, after: int, done: Done) -> bool:
    """Converts `b` in place. Returns whether its node changed. Raises Refused."""
    if after > before:
        changed = _raise(b, before, after, done)
    else:
        node = b.node
        lower(b, after, before)
        changed = b.node is not node
    if b.is_live and (lost := dtype_lost(b, after)):
        raise Refused(lost)
    return changed


def _raise(b: Binding, before: int, after: int, done: Done) -> bool:
    found = ADAPTERS.get((b.op, after))
    if found is None:
        reason = form_changes(b.op, before, after)
        refuse_if(reason, f"{reason}, and onnxgrad does not know the new form")
        return False
    was = _Was({**attributes.schema_defaults(b.op, before, ""), **b.attrs})
    node = b.node
    if b.has_refs and any(isinstance(v, RefAttr) for v in was.values()):
        _refuse_moved_references(b, before, after)
    with emitting(b.block, sources=(b,), made_by="convert-opset") as at:
        found(b, was)
    done.emitted += at.emitted
    return not b.is_live or b.node is not node


class _Was(dict[str, Any]):
    """Attributes as the old version understood them. Reading an attribute whose value comes from
    the calls of a function raises Refused, because the conversion depends on the value.
    """

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        refuse_if(
            isinstance(value, RefAttr), f"its '{name}' is given by calls: inline the function first"
        )
        return value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


def _refuse_moved_references(b: Binding, before: int, after: int) -> None:
    """Raises Refused if the new version lacks an attribute whose value comes from the calls."""
    old, new = (attributes.schema(b.op, v, "") for v in (before, after))
    names = set() if new is None else set(new.attributes)
    gone = [n for n, v in b.attrs.items() if isinstance(v, RefAttr) and n not in names]
    if gone or old is None:
        raise Refused(f"its '{', '.join(gone)}' is given by calls: inline the function first")


def set_opset(root: BindingBlock, version: int) -> None:
    """Sets the opset of a graph or a function."""
    if not isinstance(root.opsets, MutableMapping):
        raise InternalError(f"the opset imports of '{root.name}' cannot be changed")
    root.opsets[""] = version
    if not isinstance(root.proto, FunctionProto):
        return
    for entry in root.proto.opset_import:
        if domains.is_default(entry.domain) and entry.version != version:
            proto = copy_of(root.proto)
            for other in proto.opset_import:
                if domains.is_default(other.domain):
                    other.version = version
            root.proto = proto
            root.touch()
            return


@register
@frozen
class ConvertOpset(Pass):
    """f of opset n = f of opset m in that opset's form; nested graphs and functions included.

    `to`: the opset of the result; 0 keeps the model's. A newer one at which the installed
    onnxruntime has lost an operator's kernel is not reached, unless `kernels` is off: the newest
    that serves is. `composites`: so too for the operators that `raise-composites` may make of
    chains. The conversion is one rewrite, because a model cannot have two opsets in between.
    """

    name: ClassVar[str] = "convert-opset"
    to: Count = 0
    kernels: bool = True
    composites: bool = False
    provider: Provider = "cpu"

    def run(self, program: Program, trace: Trace) -> None:
        """Converts the program. Raises InputError if an operator cannot be converted."""
        before, to = program.opset, self.to
        trace.of("convert_opset").tried += 1
        if not to or not before or to == before or trace.stopped:
            return
        if self.kernels and before < to <= NEWEST:
            raised = [name for name, _ in newer_chains(program)] if self.composites else []
            to, reason = newest_served(program, to, self.provider, raised)
            if reason:
                trace.notes[f"opset {to} in place of {self.to}: {reason}"] = None
            if to == before:
                return
        trace.of("convert_opset").matched += 1
        done = convert(program, to)
        # bodies contain constants that are rounded to the dtype of the operands
        trace.rounded |= bool(done.opened)
        opened = ", ".join(f"{n} {op}" for op, n in done.opened.items())
        where = f"opset {before} -> {to}"
        trace.fired("convert_opset", f"{where}; opened {opened}" if opened else where)
