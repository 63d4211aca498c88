"""Derivatives of a model in the files, names and layout that CasADi expects.

For a file f.onnx, CasADi 3.8 reads reverse mode from adj_f.onnx, forward mode from fwd_f.onnx, and
their derivatives from fwd_adj_f.onnx and so on. CasADi's tensors are matrices: rank 2 stays
unchanged, everything else becomes one column. Seeds of several directions stand side by side, and
one Scan goes over them. Bindings that do not depend on a seed, mostly the model itself, run once,
outside of the Scan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.derivatives.derivative import (
    Derivative,
    Kind,
    count_of,
    depending_on,
    drop_input,
    drop_outputs,
    joined,
    return_from,
    sizes_of,
)
from onnxgrad.grad.derivatives.vector_products import pushed_forward
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.finish import simplify
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.targets import Target
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.emission.emit import emit_with_blocks, emitting, nested_block
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES, Dim, TensorType, element_count
from onnxgrad.ir.var import Var
from onnxgrad.jobs.declared import REQUIRED, option
from onnxgrad.jobs.gradient_declarations import Chosen
from onnxgrad.jobs.gradients import PluggedDerivative
from onnxgrad.passes.remove_unused import RemoveUnused
from onnxgrad.report.gradient import ProductMade
from onnxgrad.rewrite.trace import Trace

_REST = np.array([-1], np.int64)
_SEEDS = re.compile(r"n(adj|fwd)\d*(_x_(\d+|n(adj|fwd)\d*))*")


@frozen(kw_only=True)
class CasadiOptions(PluggedDerivative, Chosen):
    """The options of `casadi_derivative`."""

    job: ClassVar[str] = "casadi_derivative"
    made: ClassVar[Any] = ProductMade

    kind: Literal["adj", "fwd"] = option(REQUIRED, "reverse or forward mode", positional=True)

    @staticmethod
    def formed(program: Program, *chosen: Any, **options: Any) -> Derivative:
        """Returns the derivative."""
        return sibling(program, *chosen, **options)


def sibling(program: Program, wrt: Wrt = None, target: Target = None, *, kind: Kind) -> Derivative:
    """Implements `casadi_derivative` on a Program, which is changed or replaced."""
    sizes = seed_sizes(program)
    program, _ = raise_opset(program)
    prefix = prefix_of(program.main, kind)
    if target is None:
        target = [
            v.name
            for v in program.main.outputs
            if isinstance(v.type, TensorType) and v.dtype in FLOAT_DTYPES
        ]
    made = _one_direction(program, kind, wrt, target)
    program, block = made.program, made.program.main
    values = {v.name: v for v in block.vars()}
    given = made.tangents or made.seeds
    _check_interface(block, [values[name] for name in (*given, *made.results)])
    seeds = {values[seed]: values[name] for name, seed in given.items()}
    results = {values[result]: values[name] for name, result in made.results.items()}
    drop_outputs(block, 0, len(block.outputs))
    dim = f"n{prefix[:-1]}"
    with emitting(block, made_by="gradient"):
        block.schedule()
        stacks = [
            _unpacked(block.add_input(_free(block, prefix + v.name), _packed_type(v, dim)), v)
            for v in seeds.values()
        ]
        found = _directions(block, list(seeds), stacks, results)
        packed = [_packed(stack, v) for stack, v in zip(found, results.values(), strict=True)]
    for seed, v in seeds.items():
        drop_input(block, seed, v)
    for column, v in zip(packed, results.values(), strict=True):
        column.rename(_free(block, prefix + v.name))
        column.type = _packed_type(v, dim)
        block.add_output(column)
    RemoveUnused().run(program, Trace())
    named = {v.name: prefix + v.name for v in (*seeds.values(), *results.values())}
    return Derivative(
        program,
        kind,
        made.targets,
        {name: named[name] for name in made.results},
        {name: named[name] for name in made.tangents},
        {name: named[name] for name in made.seeds},
        notes=made.notes,
        sizes=sizes,
    )


def prefix_of(block: BindingBlock, kind: str) -> str:
    """Returns the prefix that CasADi puts before the names of the next derivative: `adj_`, `adj2_`
    if the model has such names already, then `adj3_`.
    """
    highest = 0
    for v in (*block.inputs, *block.outputs):
        first, found, _ = v.name.partition("_")
        number = first.removeprefix(kind)
        if found and number != first and (not number or number.isdecimal()):
            highest = max(highest, int(number or 1))
    return f"{kind}{highest + 1}_" if highest else f"{kind}_"


def seed_sizes(program: Program) -> dict[str, int]:
    """Returns consistent sizes for the symbolic dimensions that count seeds: two of each kind."""
    sizes = {d for v in program.main.inputs for d in v.shape or () if isinstance(d, str)}
    return {
        d: math.prod(int(n) if n.isdecimal() else 2 for n in d.split("_x_"))
        for d in sorted(sizes)
        if _SEEDS.fullmatch(d)
    }


def _one_direction(program: Program, kind: Kind, wrt: Wrt, target: Target) -> Derivative:
    """Returns the derivative in a single direction."""
    outputs, original = len(program.main.outputs), set(program.main.bindings)
    backward = differentiate(
        program, wrt, target, adjoint="input", simplify=False, names="{}_adjoint"
    )
    if kind == "adj":
        made = Derivative(
            backward.program,
            "adj",
            backward.targets,
            backward.adjoints,
            {},
            backward.seeds,
            notes=backward.notes,
        )
    else:
        made = pushed_forward(backward, outputs, "{}_tangent")
    values = {v.name: v for v in made.program.main.vars()}
    simplify(made.program, [values[name] for name in made.results], original)
    return made


def _check_interface(block: BindingBlock, values: Iterable[Var]) -> None:
    """Raises InputError for a value that is neither input nor output, or of unknown rank."""
    for v in values:
        if not (v.is_input or v in block.outputs):
            raise InputError(f"'{v.name}' is neither an input nor an output: choose one of those")
        if v.rank is None:
            raise InputError(f"'{v.name}' is of unknown rank: CasADi asks for a matrix")


def _free(block: BindingBlock, name: str) -> str:
    if name in block.program.names:
        raise InputError(f"the model has a '{name}', which is what CasADi calls a derivative")
    return name


def _packed_type(v: Var, dim: str) -> TensorType:
    """Returns the type of a matrix with the columns of all directions side by side. The number of
    columns is `dim`, or a symbol that names the multiple of `dim`.
    """
    shape = v.shape or ()
    if len(shape) == 2:
        rows, columns = shape
        wide: Dim = dim if columns == 1 else None if columns is None else f"{dim}_x_{columns}"
        return TensorType(v.dtype, (rows, wide))
    return TensorType(v.dtype, (shape[0] if len(shape) == 1 else element_count(shape), dim))


def _unpacked(packed: Var, v: Var) -> Var:
    """Emits [directions, *shape] from the matrix with the directions side by side."""
    if v.rank == 2:
        parts = [sizes_of(v, 0, 1), _REST, sizes_of(v, 1, 2)]
        return op.Transpose(op.Reshape(packed, joined(parts)), perm=[1, 0, 2])
    turned = op.Transpose(packed, perm=[1, 0])
    return turned if v.rank == 1 else op.Reshape(turned, joined([_REST, sizes_of(v, 0, None)]))


def _packed(stack: Var, v: Var) -> Var:
    """Emits the matrix with the directions side by side from [directions, *shape]."""
    if v.rank == 2:
        turned = op.Transpose(stack, perm=[1, 0, 2])
        return op.Reshape(turned, joined([sizes_of(v, 0, 1), _REST]))
    flat = stack if v.rank == 1 else op.Reshape(stack, joined([_REST, count_of(v)]))
    return op.Transpose(flat, perm=[1, 0])


def _directions(
    block: BindingBlock,
    seeds: Sequence[Var],
    stacks: Sequence[Var],
    results: Mapping[Var, Var],
) -> tuple[Var, ...]:
    """Returns the `results`, stacked for all directions. A Scan takes each direction in turn, with
    its part of the `stacks` in place of the `seeds`.
    """
    body = nested_block("directions")
    with emitting(body, made_by="gradient"):
        mapping: dict[Var, Var | None] = {
            seed: body.add_input(block.program.names.fresh("direction"), seed.type)
            for seed in seeds
        }
        clone_bindings(depending_on(block, seeds), body, mapping)
        return_from(body, mapping, results)
    types = [TensorType(v.dtype, (None, *(v.shape or ()))) for v in results.values()]
    return emit_with_blocks("Scan", stacks, {"body": body}, types, num_scan_inputs=len(stacks))
