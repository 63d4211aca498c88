"""A call of an operator and its body: builders read operands and attributes by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.var import Var

Builder = Callable[..., Any]
# operator: what emits its body, and a note for the table of gradients
Bodies = dict[str, tuple[Builder, str]]


def build(builder: Builder, binding: Binding) -> list[Var | None]:
    """Emits the body of a call. Returns one value per output, None for an omitted output.

    Raises InputError if the body does not compute an output that the call has.
    """
    parameters = list(inspect.signature(builder).parameters.values())
    operands = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    named = {
        p.name: binding.attr(p.name, None if p.default is p.empty else p.default)
        for p in parameters[len(operands) :]
    }
    if "binding" in named:
        named["binding"] = binding
    made = builder(*map(binding.operand, range(len(operands))), **named)
    results = list(made) if isinstance(made, tuple) else [made]
    results += [None] * (len(binding.outputs) - len(results))
    for out, result in zip(binding.outputs, results):
        if out is not None and not isinstance(result, Var):
            name = full_name(binding.domain, binding.op)
            raise InputError(f"the body of {name} does not compute '{out.name}' of '{binding}'")
    return [None if out is None else result for out, result in zip(binding.outputs, results)]


def lower(binding: Binding, builder: Builder) -> dict[Var, Var]:
    """Replaces a call by the bindings of its body, at the end of the block. Returns the new value
    of each result. Leaves the call if the body raises an error.
    """
    block, name = binding.block, full_name(binding.domain, binding.op)
    with emitting(block, share=True, sources=(binding,), made_by=f"body of {name}") as at:
        try:
            results = build(builder, binding)
        except Exception:
            at.discard()
            raise
    pairs = zip(list(binding.outputs), results)
    stands = {out: new for out, new in pairs if out is not None and new is not None}
    for out, new in stands.items():
        block.replace(out, new)
    block.remove(binding)
    return stands


def decline(binding: Binding, what: str, declined: bool) -> None:
    """Raises InputError if `declined`: no rule is known to be right for such a call."""
    if declined:
        raise InputError(
            f"no gradient or lowering of {binding.domain}::{binding.op} at '{binding}': {what} is "
            "not supported: export the model without it, or register a body of your own with "
            "onnxgrad.body(..., replace=True)"
        )
