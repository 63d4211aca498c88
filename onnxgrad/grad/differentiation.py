"""`differentiate` adds adjoints to a program in three acts: prepare the forward part, walk back
over it, finish the graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.backward_walk import backward
from onnxgrad.grad.checkpointing.choice import (
    Balanced,
    Choice,
    Segments,
    budget_of,
    is_estimated,
    neighbours,
    plans,
)
from onnxgrad.grad.checkpointing.memory import peak_of
from onnxgrad.grad.finish import finish, variable
from onnxgrad.grad.prepare import Adjoint, GradientRequest, Prepared, prepare
from onnxgrad.grad.registry import FORM
from onnxgrad.grad.safe_forms import safe_forms
from onnxgrad.grad.sequences import zeros_of
from onnxgrad.grad.stops import cut_off
from onnxgrad.grad.straight_through import why_zero
from onnxgrad.grad.targets import Target
from onnxgrad.grad.weights.kept import kept, note_of_decisive
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.load import collector_paused, load_own
from onnxgrad.ir.ops import op
from onnxgrad.ir.preflight.invalid_models import blaming
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var

_TRIALS = 32  # formed gradients of a local search


@frozen
class Gradient:
    """A program with its adjoints, and notes for the user."""

    program: Program
    targets: tuple[str, ...]
    # requested value -> output that holds its adjoint, in the order requested
    adjoints: Mapping[str, str]
    # target -> graph input for its adjoint, where that is not a constant
    seeds: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # where gradients stop
    stops: tuple[str, ...] = ()
    kind: str = "gradient"

    @property
    def results(self) -> Mapping[str, str]:
        """The outputs by the values to which they belong."""
        return self.adjoints

    @property
    def values(self) -> list[str]:
        """The values with respect to which it was formed."""
        return list(self.adjoints)


def differentiate(
    program: Program, wrt: Wrt = None, target: Target = None, **options: Any
) -> Gradient:
    """Forms the gradient of a Program, which is changed, or replaced if its opset has to be raised.

    options: the other fields of `GradientRequest`.
    """
    request = GradientRequest(wrt, target, **options)
    with collector_paused(), blaming(program.proto):
        if is_estimated(program, request.checkpoint):
            return fitting(program, request)[1]
        return _differentiated(program, request)


def fitting(program: Program, request: GradientRequest) -> tuple[Choice, Gradient]:
    """Returns a choice of recomputed segments and its gradient, which recomputes the least among
    those whose run takes no more bytes than the budget. For "auto", the bytes are those of the
    least found and a tenth of them. Raises InputError, which names the least, if none fits.
    """
    budget, balanced = budget_of(request.checkpoint), Balanced()
    plain = [] if budget is None else [_trial(program, request, Segments(0))]
    if budget is not None and plain[0].peak <= budget:
        return plain[0].result()
    best = _trial(program, request, balanced)
    formed = plain
    for choice in plans(balanced, budget):
        formed.append(_trial(program, request, choice))
        if budget is not None and formed[-1].peak <= budget:
            return formed[-1].result()
    formed.append(replace(best, choice=balanced.best))
    if budget is not None:
        formed.append(_improved(program, request, balanced, formed))
    least = min(trial.peak for trial in formed)
    most = least * 11 // 10 if budget is None else budget
    if least > most:
        raise InputError(
            f"no choice of segments fits {budget} bytes; the least found needs about {least}"
        )
    return next(trial for trial in formed if trial.peak <= most).result()


def _improved(
    program: Program, request: GradientRequest, balanced: Balanced, formed: Sequence[_Trial]
) -> _Trial:
    """Returns the best choice of a local search over the boundaries, from the best of those formed.
    Its steps do not depend on the budget, so the least that a refusal names is met.
    """
    segments = [(t, t.choice) for t in formed if isinstance(t.choice, Segments) and t.choice.count]
    best, at = min(segments, key=lambda pair: (pair[0].peak, pair[1].count))
    seen, budget = set[Segments](), budget_of(request.checkpoint) or 0
    while len(seen) < _TRIALS and best.peak > budget:
        fresh = dict.fromkeys(c for c in neighbours(balanced, at) if c not in seen)
        for choice in list(fresh)[: _TRIALS - len(seen)]:
            seen.add(choice)
            trial = _trial(program, request, choice)
            if trial.peak < best.peak:
                best, at = trial, choice
                break
        else:
            break
    return best


@frozen
class _Trial:
    """A gradient formed with a choice of segments, its warnings, and the bytes of a run."""

    choice: Choice
    gradient: Gradient
    told: list[warnings.WarningMessage]
    peak: int

    def result(self) -> tuple[Choice, Gradient]:
        """Returns the choice and the gradient, and repeats the warnings."""
        for w in self.told:
            warnings.warn(w.message, stacklevel=8)  # the caller of `onnxgrad.gradient`
        return self.choice, self.gradient


def _trial(program: Program, request: GradientRequest, choice: Choice) -> _Trial:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = _differentiated(load_own(program), replace(request, checkpoint=choice))
    return _Trial(choice, found, told, peak_of(found.program.main))


def _differentiated(program: Program, request: GradientRequest) -> Gradient:
    task = prepare(program, request)
    before = FORM.set(task.request.form)
    try:
        # rules may compute ahead of time from a weight only if its value will not be replaced
        with kept(task.program, task.requested):
            with variable(task.requested if task.request.replaced else ()):
                answer = _walk(task)
            finish(task)
    finally:
        FORM.reset(before)
    return answer


def _walk(task: Prepared) -> Gradient:
    """Acts two: walks from the targets' adjoints back to the requested ones and returns those."""
    request, block = task.request, task.block
    notes = list(task.notes)
    for text in note_of_decisive(task.program, task.requested_names):
        notes.append(text)
        warnings.warn(text, stacklevel=8)  # the caller of `onnxgrad.gradient`
    with emitting(block, share=True, made_by="gradient"):
        named = zip(task.targets, task.seed_names, strict=True)
        seeds = {v: _seed(v, request.adjoint, request.names.format(name)) for v, name in named}
        with safe_forms(request.safe) as used:
            found = backward(block, seeds, task.requested, view=task.view)
        notes += used.notes()
        if not found:
            names = ", ".join(f"'{name}'" for name in task.target_names)
            which = "target" if len(task.target_names) == 1 else "targets"
            text = f"no requested value reaches {which} {names}: all gradients are zero"
            if reason := why_zero(block, task.requested, task.targets, ste=request.ste):
                text += f" ({reason})"
            notes.append(text)
            warnings.warn(text, stacklevel=8)  # the caller of `onnxgrad.gradient`
        requested = dict(zip(task.requested_names, task.requested, strict=True))
        if found:
            notes += cut_off(
                block, {n: v for n, v in requested.items() if v not in found}, task.stops
            )
        outputs = {
            name: _return(block, v, found.get(v), request.names.format(name), task.forward)
            for name, v in requested.items()
        }
    called = request.names.format
    notes += [renamed(v, o, request.names) for v, o in outputs.items() if o != called(v)]
    # a target that a call computed is another value now that the call is open
    by_name = dict(zip(task.target_names, task.targets, strict=True))
    given = (
        {name: seeds[v].name for name, v in by_name.items()} if request.adjoint == "input" else {}
    )
    return Gradient(
        task.program,
        tuple(task.target_names),
        outputs,
        given,
        tuple(notes),
        tuple(v.name for v in task.stops),
    )


def _seed(target: Var, adjoint: Adjoint, name: str) -> Var:
    return (
        target.block.add_input(target.block.program.names.fresh(name), target.type)
        if adjoint == "input"
        else constant(np.ones(()), target.dtype, name="one")
    )


def _return(
    block: BindingBlock, value: Var, adjoint: Var | None, name: str, forward: Collection[Binding]
) -> str:
    """Makes the adjoint an output named `name`, or similar if that is taken. An Identity is added
    only if the adjoint cannot have that name itself.
    """
    if adjoint is None:
        adjoint = zeros_of(value)
    name = block.program.names.fresh(name)
    # values of the forward part, constants, and values that are outputs already keep their names
    if adjoint.returned or adjoint.definition is None or adjoint.definition in forward:
        # not shared: each of several values with one adjoint has its own
        with emitting(block, made_by="gradient"):
            adjoint = op.Identity(adjoint)
    adjoint.rename(name)
    block.add_output(adjoint)
    return name


def renamed(value: str, output: str, names: str) -> str:
    """Returns the note for an adjoint whose name is taken."""
    return f"'{names.format(value)}' is taken: the gradient of '{value}' is '{output}'"
