"""Copying, walking back and recording the bodies of If, Loop and Scan.

The forward Loop or Scan gets one more result per state: the state before each step. Nothing else
changes in it. The backward Loop or Scan starts at the last step, reads the recorded states,
computes the body again and walks it backwards. Captured values accumulate their adjoints over the
steps. (Griewank & Walther, Evaluating Derivatives, ch. 3: the reverse sweep of an iteration with
its states on tape.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.backward_walk import AsKept, backward
from onnxgrad.grad.checkpointing.marks import take
from onnxgrad.grad.checkpointing.recomputation import Recomputation
from onnxgrad.grad.inlining import open_calls
from onnxgrad.grad.paths import has_gradient
from onnxgrad.grad.sequences import add_up_sequences, zeros_of
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings, clone_sparse
from onnxgrad.ir.emission.emit import constant, emitting, nested
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import SequenceType, TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.laws.sums import add_up

Answer = Mapping[Var, Any]


def body_again(source: BindingBlock) -> AbstractContextManager[BindingBlock]:
    """Returns a context that emits into a new block, for a second run of the body `source`."""
    return nested(f"{source.name or 'body'}_gradient")


@frozen
class Body:
    """A nested block, as it was before its states were recorded."""

    source: BindingBlock
    inputs: list[Var]
    bindings: list[Binding]
    outputs: list[Var]

    @staticmethod
    def of(source: BindingBlock) -> Body:
        """Returns the body with its current bindings, in order."""
        source.schedule()
        return Body(source, list(source.inputs), list(source.bindings), list(source.outputs))

    def copy(self, block: BindingBlock, values: Sequence[Var] = ()) -> list[Var]:
        """Copies the body's constants and bindings into `block`, with `values` as its inputs.

        Returns the outputs of the copy.
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
    """Returns the adjoints of `wanted` in a copied body, given the adjoints `g` of its outputs.

    Several adjoints of one value are added up. Marks of checkpoints in the copy hold, and go.
    """
    marks = take(block)
    arrived: dict[Var, list[Any]] = {}
    for out, adjoint in zip(outs, g, strict=True):
        if adjoint is not None and has_gradient(out.type):
            arrived.setdefault(out, []).append(adjoint)
    seeds = {v: add_up_sequences(parts) for v, parts in arrived.items()}
    if not seeds:
        return {}
    open_calls(block, list(seeds), wanted)
    view = AsKept() if marks is None else Recomputation(block, marks.now())
    return backward(block, seeds, wanted, view=view)


def return_adjoint(block: BindingBlock, adjoint: Any, like: Var | None) -> None:
    """Adds an output to the body `block`: an adjoint, or zeros if the adjoint is None.

    A body returns only values that it computes itself, so others pass through an Identity.
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
    """Returns the adjoint of a final state, or zeros of the state's shape if none arrived."""
    return adjoint if adjoint is not None else zeros_of(initial if final is None else final)


def captured_by(body: BindingBlock, wanted: Sequence[Var]) -> list[Var]:
    """Returns the members of `wanted` that the body reads from outside."""
    outside = set(body.captures())
    return [v for v in wanted if v in outside]


def answer_of(values: Sequence[Var], results: Sequence[Var], wanted: Sequence[Var]) -> Answer:
    """Returns one partial per value.

    An operand has several results if it is also captured or feeds two states; they are added up.
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
    """Returns `v`, an operand of `b`. Raises InputError if the operand is left out."""
    if v is None:
        raise InputError(f"no gradient of '{b}': one of its operands is left out")
    return v


def refuse_random(b: Binding, body: BindingBlock) -> None:
    """Raises InputError if the body draws random numbers."""
    drawn = next((inner for inner in body.walk() if draws(inner)), None)
    if drawn is not None:
        raise InputError(
            f"the body of '{b}' draws random numbers ({drawn.op}), and its gradient would run the "
            "body again with different ones: draw them outside the body and pass them in"
        )


def record(b: Binding, body: BindingBlock, v: Var, type_: Type) -> Var:
    """Adds a scan output to `b` that stacks the value of `v` at each step."""
    with emitting(body, sources=(b,), made_by="gradient"):
        body.add_output(op.Identity(v))
    stacked = None
    if isinstance(type_, TensorType):
        known = type_.shape is not None
        stacked = TensorType(type_.dtype, (None, *(type_.shape or ())) if known else None)
    if body.outputs[-1].type is None:
        body.outputs[-1].type = type_
    return b.block.add_result(
        b, len(b.outputs), b.block.program.names.fresh(f"{v.name}_steps"), stacked
    )
