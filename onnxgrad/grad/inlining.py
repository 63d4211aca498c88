"""Opens calls in place: of local functions, and of operators with a body that is registered
(`registry.body`) or in the schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onnxgrad.errors import InputError
from onnxgrad.grad.kernel_types import learn_ranks, learn_types
from onnxgrad.grad.paths import influenced, paths_of, reaching
from onnxgrad.grad.registry import GradientRule, naming, rule_of
from onnxgrad.grad.sequences import is_float
from onnxgrad.grad.unbroadcast import contradict
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.fill_and_reshape import with_type_of
from onnxgrad.ir.function_bodies import (
    body_of,
    called,
    conflict,
    expanded_size,
    expanded_sizes,
    functions_callees_first,
    has_schema_body,
    splice,
)
from onnxgrad.ir.identity_barrier import insert_barrier
from onnxgrad.ir.program import FunctionKey
from onnxgrad.ir.type_inference.per_binding import retype
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import lower
from onnxgrad.laws.constant_values import folded

# opening stops at this size: if each function of a chain calls the next one twice, every level
# doubles the graph
MAX_BINDINGS = 200_000


def open_calls(
    block: BindingBlock,
    targets: Collection[Var],
    sources: Collection[Var],
    others: Collection[Var] = (),
) -> list[Binding]:
    """Opens every call between `sources` and `targets` that has a body and no rule, and the calls
    inside of these.

    Calls before a source of unknown shape are opened as well, because its adjoint needs a type. If
    an opened call defines a source, a target or one of `others`, an Identity defines that value
    afterwards. Returns these Identities.
    """
    kept: set[Var] = {*targets, *sources, *others}
    anchors: list[Binding] = []
    while True:
        learn_ranks(block)
        paths = paths_of(block)
        needed = influenced(block, sources, paths) & reaching(block, targets, paths)
        unknown = [
            v
            for v in sources
            if v.type is None or (isinstance(v.type, TensorType) and v.shape is None)
        ]
        needed |= reaching(block, unknown, paths) if unknown else set()
        calls = [
            b
            for b in block.bindings
            if any(v in needed for v in b.outputs if v is not None) and has_body(b)
        ]
        learn_types(block, but=calls)
        if not calls:
            return anchors
        refuse_bomb(block, calls)
        for b in calls:
            # the body may return a value that others read too, which must stay a separate value
            anchors += [insert_barrier(v) for v in list(b.outputs) if v is not None and v in kept]
            open_call(b)
        retype(block)
        correct_types(anchors)


def correct_types(anchors: Iterable[Binding]) -> None:
    """Gives anchors the type of the value that they read if the declared type contradicts it."""
    for identity in anchors:
        source, out = identity.inputs[0], identity.out
        if source is not None and contradict(source.type, out.type):
            out.type = source.type


def has_body(binding: Binding) -> bool:
    """Whether the binding can be opened: a registered body, or without a rule a local function
    or a schema body.
    """
    if (rule := rule_of(binding)) is not None:
        return rule.kind == "body"
    return called(binding) is not None or has_schema_body(binding)


def refuse_bomb(block: BindingBlock, calls: Sequence[Binding]) -> None:
    """Raises InputError if `block` would exceed MAX_BINDINGS with these calls, and the calls inside
    of them, opened.
    """
    program = block.program
    if not program.functions:
        return
    # a function whose calls have a rule stays a call, unless it is one of `calls`
    ruled = {
        key
        for block_ in (program.main, *program.functions.values())
        for b in block_.walk()
        if (key := called(b)) is not None and not has_body(b)
    }
    sizes = expanded_sizes(
        program, [key for key in functions_callees_first(program) if key not in ruled]
    )
    size = len(block.bindings) - len(calls) + expanded_size(calls, sizes)
    if size > MAX_BINDINGS:
        raise InputError(
            f"opening the calls of '{calls[0].op}' and the like grows graph '{block.name}' to "
            f"{size} nodes, more than {MAX_BINDINGS}: inline less of the model"
        )


def open_call(binding: Binding) -> None:
    """Replaces the call by its body's bindings, within its block.

    Raises InputError for a recursive function, for a function of another opset whose operators have
    changed, and if the graph would exceed MAX_BINDINGS.
    """
    rule = rule_of(binding)
    if rule is not None and called(binding) is None:
        _open_registered(rule, binding)
        return
    body, block = body_of(binding), binding.block
    if len(block.bindings) + len(body.block.bindings) > MAX_BINDINGS:
        raise InputError(
            f"opening the calls of '{binding.op}' passes {MAX_BINDINGS} nodes: inline "
            "less of the model"
        )
    if body.key is not None:
        _refuse_recursion(binding, body.key)
        reason = conflict(binding, body)
        if reason is not None:
            raise InputError(f"function {binding.domain}::{binding.op} cannot be opened: {reason}")
    # a folded value has no gradient, and a weight of the caller may need one
    weights = {v for v in binding.inputs if v is not None and v.is_constant and is_float(v)}

    def kept_or_folded(b: Binding) -> Var | None:
        return None if weights.intersection(v for v in b.inputs if v is not None) else folded(b)

    with emitting(block, share=True):
        _, stands = splice(binding, body, prefix=f"{binding.op.lower()}_", fold=kept_or_folded)
    for out, new in stands.items():
        if new.definition is not None and not contradict(new.type, out.type):
            with_type_of(new, out)


def _open_registered(rule: GradientRule, binding: Binding) -> None:
    """Replaces the call by the bindings that a `body` rule emits."""
    if any(v is not None and v.type is None for v in binding.inputs):
        # onnx cannot type the operator before this one, but its opened body may have types
        retype(binding.block)
    with naming(rule, binding):
        stands = lower(binding, rule.formula)
    for out, new in stands.items():
        if new.definition is not None and not contradict(new.type, out.type):
            with_type_of(new, out)


def _refuse_recursion(binding: Binding, start: FunctionKey) -> None:
    """Raises InputError if the function reaches itself through calls."""
    functions = binding.block.program.functions
    work, seen = [start], set[FunctionKey]()
    while work:
        for b in functions[work.pop()].walk():
            key = called(b)
            if key == start:
                raise InputError(
                    f"function {binding.domain}::{binding.op} calls itself: no graph holds it, so "
                    "it has no gradient"
                )
            if key is not None and key not in seen:
                seen.add(key)
                work.append(key)
