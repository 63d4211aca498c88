"""Gradients through control flow: If here, and what Loop and Scan share. Bodies run again in blocks
of their own.

The forward Loop or Scan gets one more result per state, the state before each step, and nothing
else changes in it. The backward one starts at the last step, reads what was recorded, computes the
body again and walks it backwards. Captured values accumulate their adjoints over the steps.
(Griewank & Walther, Evaluating Derivatives, ch. 3: the reverse sweep of an iteration with its
states on tape.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.grad.backward_walk import backward
from onnxgrad.grad.opening import open_calls
from onnxgrad.grad.paths import has_gradient
from onnxgrad.grad.sequences import add_up_sequences, nested, zeros_of
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings, clone_sparse
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import SequenceType, TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.laws.sums import add_up

Answer = Mapping[Var, Any]


def body_again(source: BindingBlock) -> AbstractContextManager[BindingBlock]:
    """A new block to emit into, for a body that runs `source` again."""
    return nested(f"{source.name or 'body'}_gradient")


@dataclass(frozen=True)
class Body:
    """A nested block as it stands before states are recorded in it."""

    source: BindingBlock
    inputs: list[Var]
    bindings: list[Binding]
    outputs: list[Var]

    @staticmethod
    def of(source: BindingBlock) -> Body:
        """The body now, its bindings in order."""
        source.schedule()
        return Body(source, list(source.inputs), list(source.bindings), list(source.outputs))

    def copy(self, block: BindingBlock, values: Sequence[Var] = ()) -> list[Var]:
        """Run it again in `block` on `values` for its inputs, constants and bindings copied; its
        outputs there.
        """
        mapping: dict[Var, Var | None] = dict(zip(self.inputs, values, strict=True))
        for v in self.source.initializers.values():
            array = v.const
            if array is None:
                raise InputError(
                    f"parameter '{v.name}' of block '{self.source.name}' has a default: no gradient"
                )
            with emitting(block):
                mapping[v] = constant(array, name=v.name)
        clone_sparse(self.source, block, mapping)
        clone_bindings(self.bindings, block, mapping)
        return [present(mapping.get(v, v), self.source.owner) for v in self.outputs]


def walk_back(
    block: BindingBlock, outs: Sequence[Var], g: Sequence[Any], wanted: Sequence[Var]
) -> dict[Var, Any]:
    """The adjoints of `wanted` in a copied body, given those of its outputs; several on one
    value add up.
    """
    arrived: dict[Var, list[Any]] = {}
    for out, adjoint in zip(outs, g, strict=True):
        if adjoint is not None and has_gradient(out.type):
            arrived.setdefault(out, []).append(adjoint)
    seeds = {v: add_up_sequences(parts) for v, parts in arrived.items()}
    if not seeds:
        return {}
    open_calls(block, list(seeds), wanted)
    return backward(block, seeds, wanted)


def return_adjoint(block: BindingBlock, adjoint: Any, like: Var | None) -> None:
    """Return an adjoint from a body, zeros when there is none; a body returns only what it
    computes itself.
    """
    if adjoint is None and like is not None:
        adjoint = zeros_of(like)
    if adjoint.block is not block or adjoint.definition is None:
        adjoint = op.Identity(adjoint)
    while (
        adjoint.returned
    ):  # onnxruntime computes wrong numbers for a value that a body returns twice
        adjoint = op.Identity(adjoint)
    block.add_output(adjoint)


def given(adjoint: Any, initial: Var, final: Var | None) -> Var:
    """The adjoint of a final state; zeros of its own shape when none arrived."""
    return adjoint if adjoint is not None else zeros_of(initial if final is None else final)


def captured_by(body: BindingBlock, wanted: Sequence[Var]) -> list[Var]:
    """Those of `wanted` that the body reads from outside."""
    outside = set(body.captures())
    return [v for v in wanted if v in outside]


def answer_of(values: Sequence[Var], results: Sequence[Var], wanted: Sequence[Var]) -> Answer:
    """One partial per value; an operand that is also captured, or that feeds two states, has
    several.
    """
    parts: dict[Var, list[Any]] = {}
    for v, partial in zip(values, results, strict=True):
        if v in wanted:
            parts.setdefault(v, []).append(partial)
    return {
        v: add_up_sequences(p) if isinstance(v.type, SequenceType) else add_up(p)
        for v, p in parts.items()
    }


def present(v: Var | None, b: Binding | None) -> Var:
    """`v`, an operand of `b`. Raises InputError when it is left out."""
    if v is None:
        raise InputError(f"an operand of control flow is left out, so it has no gradient: {b}")
    return v


def refuse_random(b: Binding, body: BindingBlock) -> None:
    """Raises InputError when the body draws random numbers."""
    drawn = next((inner for inner in body.walk() if draws(inner)), None)
    if drawn is not None:
        raise InputError(
            f"the body of '{b}' draws random numbers ({drawn.op}); its gradient runs the body "
            "again, which would draw others: draw outside and pass the numbers in"
        )


def record(b: Binding, body: BindingBlock, v: Var, type_: Type) -> Var:
    """One more scan output: `v` of each step, stacked."""
    with emitting(body, sources=(b,), made_by="gradient"):
        body.add_output(op.Identity(v))
    stacked = (
        TensorType(type_.dtype, (None, *(type_.shape or ())))
        if isinstance(type_, TensorType)
        else None
    )
    if body.outputs[-1].type is None:
        body.outputs[-1].type = type_
    return b.block.add_result(
        b, len(b.outputs), b.block.program.names.fresh(f"{v.name}_steps"), stacked
    )
