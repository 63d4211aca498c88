"""Chains of bindings that form one function: one formula computes the operand's adjoint from the
result's adjoint, and the walk skips the bindings between.

Exporters write Gelu by tanh as nine bindings, whose rules together emit eleven. In closed form,
which reads forward values, it takes eight. `chain` registers a formula of the partial of `x`. Other
readers of the values between are not affected: their adjoints flow as usual and are added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import Formula
from onnxgrad.grad.unbroadcast import fit
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.attempt import call_arguments
from onnxgrad.rewrite.match import match_binding
from onnxgrad.rewrite.pattern import Pattern


@frozen
class Chain:
    """A pattern over numbers and the captures `ends`, by default `x`, or `x` and `z`. The formula
    `f(g, y, captures by name ...)` returns the partial of `x`, or a tuple with one per end.

    A formula that asks for `needed`, the values whose adjoints are needed, may return None before
    it emits anything: then the rules of the single bindings apply.
    """

    name: str
    pattern: Pattern
    formula: Formula
    ends: tuple[str, ...]


_CHAINS: dict[tuple[str, str], list[Chain]] = {}


def chain(pattern: Pattern, ends: str = "x z") -> Callable[[Formula], Formula]:
    """Registers the decorated formula. Its docstring states the function of the chain."""

    def register(formula: Formula) -> Formula:
        made = Chain(formula.__name__, pattern, formula, tuple(ends.split()))
        for head in sorted(pattern.heads or ()):
            _CHAINS.setdefault(head, []).append(made)
        return formula

    return register


def closed(
    root: Binding, g: Var | None, needed: Collection[Var], wanted: Collection[Var]
) -> list[tuple[Var, Var]]:
    """Returns the operands of the chain that ends at `root`, each with its partial; an empty list
    if no chain ends there, or if the adjoint of another value in it is needed.

    needed: the values on paths between the targets and those whose adjoints are `wanted`.
    """
    for found in _CHAINS.get((root.domain, root.op), ()) if g is not None else ():
        for captured in match_binding(found.pattern, root):
            ends: list[Var | None] = [captured[k] for k in found.ends if k in captured]
            between, beside = _around(root, [v for v in ends if v is not None])
            inside_needed = any(v in wanted for v in between) or any(v in needed for v in beside)
            if inside_needed or not any(v in needed for v in ends):
                continue
            at = emitter()
            made = [v.definition for v in between if v.definition is not None]
            at.sources, at.made_by = (*reversed(made), root), f"gradient of {found.name}"
            offered: dict[str, Any] = {**captured, "needed": needed}
            partials = found.formula(g, root.out, **call_arguments(found.formula, offered))
            pairs = zip(ends, partials if isinstance(partials, tuple) else (partials,))
            closed_by = [
                (x, fit(partial, x, found.name, True, root, i))
                for i, (x, partial) in enumerate(pairs)
                if x is not None and x in needed and partial is not None
            ]
            if closed_by:
                return closed_by
    return []


def _around(root: Binding, ends: Collection[Var]) -> tuple[list[Var], list[Var]]:
    """Returns the values between `ends` and the result of `root`, and their other operands: the
    numbers of the chain, and values that another block defines.
    """
    between: dict[Var, None] = {}
    beside: list[Var] = []
    work = [v for v in root.inputs if v is not None]
    while work:
        v = work.pop()
        if v in ends or v in between:
            continue
        if v.definition is None or v.block is not root.block:
            beside.append(v)
            continue
        between[v] = None
        work += [u for u in v.definition.inputs if u is not None]
    return list(between), beside
