"""A program that multiplies by a derivative, and helpers to build one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.targets import Target, cut
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var

Kind = Literal["jvp", "hvp", "jacobian", "hessian", "adj", "fwd"]


@frozen
class Derivative:
    """A program, and the names of its new inputs and outputs by the values to which they belong.

    tangents: the input for the tangent of each value. results: the outputs, by target for a jvp and
    CasADi's fwd, else by value. seeds: the adjoint inputs of CasADi's adj, by target. by: the
    values, if `results` has other keys. stops: the values at which it stops. sizes: of the symbols
    that count directions, if a run takes several directions at once.
    """

    program: Program
    kind: Kind
    targets: tuple[str, ...]
    results: Mapping[str, str]
    tangents: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, str] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    sizes: Mapping[str, int] | None = None

    @property
    def values(self) -> list[str]:
        """The values with respect to which it was formed."""
        return list(self.by or self.tangents or self.results)


def with_target(program: Program, target: Target) -> tuple[Program, Target, list[str]]:
    """Returns the program at an opset that gradients need, the target, and the names of its parts.
    Parts of values become values, which are outputs until `drop_parts` removes them.
    """
    program, _ = raise_opset(program)
    found = cut(program.main, target, summed=False)
    for v in [v for v in program.main.vars() if v.name in found.labels]:
        program.main.add_output(v)
    return program, found.target, list(found.labels)


def drop_parts(block: BindingBlock, names: Collection[str]) -> None:
    """Removes the parts of values from the outputs."""
    for v in [v for v in block.outputs if v.name in names]:
        block.remove_output(v)


def drop_input(block: BindingBlock, given: Var, instead: Var) -> None:
    """Removes an input. Its readers, which need only its shape, read `instead`."""
    block.replace(given, instead)
    block.inputs.remove(given)
    block.touch()


def renamed_inputs(block: BindingBlock, inputs: Mapping[str, Var], names: str) -> dict[str, str]:
    """Replaces inputs by new ones named by the pattern `names`. Returns the new names by value."""
    found = {}
    for value, given in inputs.items():
        moved = block.add_input(block.program.names.fresh(names.format(value)), given.type)
        drop_input(block, given, moved)
        found[value] = moved.name
    return found


def drop_outputs(block: BindingBlock, start: int, count: int) -> None:
    """Removes `count` outputs from number `start` on."""
    for v in block.outputs[start : start + count]:
        v.returned -= 1
    del block.outputs[start : start + count]
    block.touch()


def depending_on(block: BindingBlock, inputs: Iterable[Var]) -> list[Binding]:
    """Returns the bindings that depend on some inputs, in order."""
    known = set(inputs)
    found = []
    for b in block.bindings:
        if any(v in known for v in b.reads()):
            known.update(v for v in b.outputs if v is not None)
            found.append(b)
    return found


def return_from(
    body: BindingBlock, mapping: Mapping[Var, Var | None], results: Mapping[Var, Var]
) -> None:
    """Adds the counterparts of `results` to the outputs of a Scan's body, which is being emitted
    into. Each gets the type of its value, because onnxruntime needs the rank.
    """
    for v, value in results.items():
        out = mapping.get(v) or v
        if out.block is not body or out.returned or out.definition is None:
            out = op.Identity(out)
        if out.rank is None:
            out.type = value.type
        body.add_output(out)


def sizes_of(v: Var, start: int, end: int | None) -> Any:
    """Returns a value's sizes along the axes from `start` to `end`, as a vector."""
    if v.shape is not None and all(isinstance(d, int) for d in v.shape[start:end]):
        return np.array(v.shape[start:end], np.int64)
    return op.Shape(v, start=start, end=end)


def count_of(v: Var) -> Any:
    """Returns the number of elements, as a vector of length 1."""
    sizes = sizes_of(v, 0, None)
    if isinstance(sizes, np.ndarray):
        return np.array([sizes.prod()], np.int64)
    return op.ReduceProd(sizes, keepdims=1)


def joined(vectors: Sequence[Any]) -> Any:
    """Concatenates vectors of sizes into one operand."""
    if all(isinstance(v, np.ndarray) for v in vectors):
        return constant(np.concatenate(vectors))
    made = [constant(v) if isinstance(v, np.ndarray) else v for v in vectors]
    return made[0] if len(made) == 1 else op.Concat(*made, axis=0)
