"""Hessians as outputs, formed as products with all unit vectors of each value."""

from __future__ import annotations

from dataclasses import replace

from onnxgrad.grad.derivatives.derivative import (
    Derivative,
    count_of,
    drop_input,
    joined,
    sizes_of,
)
from onnxgrad.grad.derivatives.jacobian import products
from onnxgrad.grad.derivatives.vector_products import hessian_products
from onnxgrad.grad.finish import drop_constants, simplify
from onnxgrad.grad.prepare import check_names
from onnxgrad.grad.stops import Stop
from onnxgrad.grad.targets import Target
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var


def hessians(
    program: Program, wrt: Wrt, target: Target, stop: Stop = None, names: str = "{}_{}_hessian"
) -> Derivative:
    """Implements `hessian` on a Program, which is changed or replaced."""
    check_names(names, 2)
    original = set(program.main.bindings)
    weights = set(program.main.initializers)
    moved = hessian_products(program, wrt, target, stop)
    program, block = moved.program, moved.program.main
    values = {v.name: v for v in block.vars()}
    inputs = {values[given]: values[name] for name, given in moved.tangents.items()}
    made = {values[result]: values[name] for name, result in moved.results.items()}
    found: dict[str, Var] = {}
    with emitting(block, made_by="gradient"):
        for unit, column in inputs.items():
            stacks = products(block, inputs, unit, made)
            for row, stack in zip(made.values(), stacks, strict=True):
                flat = op.Reshape(stack, joined([count_of(column), count_of(row)]))
                shape = joined([sizes_of(v, 0, None) for v in (row, column)])
                both = op.Reshape(op.Transpose(flat, perm=[1, 0]), shape)
                if row.shape is not None and column.shape is not None:
                    both.type = TensorType(both.dtype, (*row.shape, *column.shape))
                found[f"{row.name} by {column.name}"] = both
                both.rename(program.names.fresh(names.format(row.name, column.name)))
    for v in made:
        block.remove_output(v)
    for v in found.values():
        block.add_output(v)
    results = {pair: v.name for pair, v in found.items()}
    for unit, column in inputs.items():
        drop_input(block, unit, column)
    block.remove_unused()
    simplify(program, list(inputs.values()), original)
    drop_constants(block, weights)
    return replace(
        moved,
        program=program,
        kind="hessian",
        results=results,
        tangents={},
        by=tuple(moved.tangents),
    )
