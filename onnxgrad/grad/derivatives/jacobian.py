"""Jacobians as one output: products with all unit vectors at once, by the batching rules of
operators. If values would be large, or an operator has no rule, one Scan takes each vector in turn.

Bindings that depend on the unit vector are batched, or form the body of the Scan. All others, such
as those of the model, run once. In reverse mode the unit vectors are those of the target, and the
products are the rows of J; in forward mode they are those of a value, and the products are columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.layout import OWN, Refused
from onnxgrad.batching.walk import in_rows
from onnxgrad.errors import InputError
from onnxgrad.grad.derivatives.derivative import (
    Derivative,
    count_of,
    depending_on,
    drop_input,
    drop_outputs,
    drop_parts,
    joined,
    return_from,
    sizes_of,
    with_target,
)
from onnxgrad.grad.derivatives.vector_products import pushed_forward
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.finish import drop_constants, simplify
from onnxgrad.grad.prepare import check_names
from onnxgrad.grad.stops import Stop
from onnxgrad.grad.targets import Target
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.emission.emit import emit_with_blocks, emitting, nested_block
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.type_inference.per_binding import types_of
from onnxgrad.ir.types import TensorType, element_count
from onnxgrad.ir.var import Var

Mode = Literal["auto", "forward", "reverse"]
_MOST = 1 << 26  # elements of the largest value, for all products at once


def jacobians(
    program: Program,
    wrt: Wrt,
    target: Target,
    stop: Stop = None,
    mode: Mode = "auto",
    names: str = "{}_by_{}",
) -> Derivative:
    """Implements `jacobian` on a Program, which is changed or replaced."""
    check_names(names, 2)
    program, target, parts = with_target(program, target)
    outputs, original = len(program.main.outputs), set(program.main.bindings)
    weights = set(program.main.initializers)
    backward = differentiate(
        program, wrt, target, adjoint="input", simplify=False, names="{}_adjoint", stop=stop
    )
    if len(backward.seeds) != 1:
        raise InputError(f"a Jacobian is of one target; given are {', '.join(backward.seeds)}")
    block = backward.program.main
    values = {v.name: v for v in block.vars()}
    ((result, seed),) = backward.seeds.items()
    wanted = [values[name] for name in backward.adjoints]
    for v in (values[result], *wanted):
        _check_shape(v)
    if mode == "auto":
        mode = _cheaper(values[result], wanted)
    if mode == "reverse":
        program = backward.program
        simplify(program, wanted, original)
        values = {v.name: v for v in block.vars()}
        adjoints = {name: values[a] for name, a in backward.adjoints.items()}
        found = _rows(block, values[seed], values[result], adjoints, values)
        drop_outputs(block, outputs, len(adjoints))
        drop_input(block, values[seed], values[result])
    else:
        moved = pushed_forward(backward, outputs, "{}_tangent")
        program, block = moved.program, moved.program.main
        simplify(program, [v for v in block.vars() if v.name in moved.tangents], original)
        found = _columns(block, moved, result)
        drop_outputs(block, outputs, 1)
        values = {v.name: v for v in block.vars()}
        for name, given in moved.tangents.items():
            drop_input(block, values[given], values[name])
    results = {}
    for name, v in found.items():
        v.rename(program.names.fresh(names.format(result, name)))
        block.add_output(v)
        results[name] = v.name
    drop_parts(block, parts)
    block.remove_unused()
    simplify(program, [v for v in block.vars() if v.name in found], original)
    drop_constants(block, weights)
    notes, stops = backward.notes, backward.stops
    return Derivative(program, "jacobian", (result,), results, notes=notes, stops=stops)


def _check_shape(v: Var) -> None:
    """Raises InputError for a value without a tensor type."""
    if not isinstance(v.type, TensorType):
        raise InputError(f"'{v.name}' is {v.type or 'of unknown type'}: no Jacobian by or of it")


def _cheaper(target: Var, values: Sequence[Var]) -> Mode:
    """Returns the mode that takes fewer products; reverse mode if sizes are unknown."""
    rows = element_count(target.shape)
    columns = [element_count(v.shape) for v in values]
    if rows is None or None in columns:
        return "reverse"
    return "forward" if sum(n for n in columns if n is not None) < rows else "reverse"


def _rows(
    block: BindingBlock,
    seed: Var,
    target: Var,
    adjoints: Mapping[str, Var],
    values: Mapping[str, Var],
) -> dict[str, Var]:
    """Returns the Jacobian by value in reverse mode, from stacks [rows, *value] of the products J'e
    with the unit vectors e of the target.
    """
    with emitting(block, made_by="gradient"):
        shaped = {adjoint: values[name] for name, adjoint in adjoints.items()}
        stacks = products(block, {seed: target}, seed, shaped)
        found = {}
        for (name, _), stack in zip(adjoints.items(), stacks, strict=True):
            x = values[name]
            found[name] = _whole(stack, target, x)
    return found


def _columns(block: BindingBlock, moved: Derivative, result: str) -> dict[str, Var]:
    """Returns the Jacobian by value in forward mode, from stacks [columns, *target] of the products
    J e with the unit vectors e of each value.
    """
    values = {v.name: v for v in block.vars()}
    target, inputs = values[result], {n: values[v] for n, v in moved.tangents.items()}
    zeros = {given: values[name] for name, given in inputs.items()}
    found = {}
    with emitting(block, made_by="gradient"):
        for name, given in inputs.items():
            x = values[name]
            (stack,) = products(block, zeros, given, {values[moved.results[result]]: target})
            flat = op.Reshape(stack, joined([count_of(x), count_of(target)]))
            found[name] = _whole(op.Transpose(flat, perm=[1, 0]), target, x)
    return found


def products(
    block: BindingBlock,
    inputs: Mapping[Var, Var],
    unit: Var,
    results: Mapping[Var, Var],
) -> tuple[Var, ...]:
    """Returns the `results`, stacked for every unit vector in place of the input `unit` and zeros
    in place of the other inputs. `inputs` and `results` map each to the value whose shape it has.
    """
    block.schedule()
    following = depending_on(block, inputs)
    like_ = inputs[unit]
    count = joined([count_of(like_)])
    steps = op.Range(np.int64(0), op.Squeeze(count, [0]), np.int64(1))
    others: dict[Var, Var | None] = {v: zeros_like(x) for v, x in inputs.items() if v is not unit}
    if _is_small(following, like_):
        found = _at_once(block, following, {unit: steps, **others}, unit, like_, results)
        if found is not None:
            return found
    shape = op.Shape(like_)
    body = nested_block("unit_vectors")
    with emitting(body, made_by="gradient"):
        i = body.add_input(block.program.names.fresh("i"), TensorType(TensorProto.INT64, ()))
        hot = op.Cast(op.Equal(steps, i), to=like_.dtype)
        mapping: dict[Var, Var | None] = {unit: op.Reshape(hot, shape), **others}
        clone_bindings(following, body, mapping)
        return_from(body, mapping, results)
    types = [_stacked(v, like_) for v in results.values()]
    return emit_with_blocks("Scan", [steps], {"body": body}, types, num_scan_inputs=1)


def _is_small(following: Sequence[Binding], like_: Var) -> bool:
    """Whether the memory of all products at once is acceptable, as far as sizes are known."""
    count = element_count(like_.shape) or 1
    sizes = [element_count(v.shape) or 1 for b in following for v in b.outputs if v is not None]
    return count * max(sizes, default=1) <= _MOST


def _at_once(
    block: BindingBlock,
    following: Sequence[Binding],
    mapping: dict[Var, Var | None],
    unit: Var,
    like_: Var,
    results: Mapping[Var, Var],
) -> tuple[Var, ...] | None:
    """Returns all products, stacked along a first axis, by the batching rules of operators; None if
    an operator has no rule.
    """
    steps, before = mapping[unit], set(block.bindings)
    hot = op.Cast(op.Equal(op.Unsqueeze(steps, [1]), op.Unsqueeze(steps, [0])), to=like_.dtype)
    every = op.Reshape(hot, joined([count_of(like_), sizes_of(like_, 0, None)]))
    row = op.Identity(every)
    row.type = like_.type
    mapped = {**mapping, unit: row}
    try:
        copies = clone_bindings(following, block, mapped)
        ends = [mapped.get(v) or v for v in results]
        for end, value in zip(ends, results.values(), strict=True):
            if end.rank is None:
                end.type = value.type
        row.type = TensorType(like_.dtype, None if like_.shape is None else (1, *like_.shape))
        made = in_rows(copies, {row: OWN}, ends)
    except (InputError, Refused):
        block.schedule()
        for b in reversed([b for b in block.bindings if b not in before]):
            if not b.is_read:  # only these: a Scan reads the others
                block.remove(b)
        return None
    row.type = _stacked(like_, like_)
    kept = {v.definition for v in made}
    block.remove_unused([b for b in block.bindings if b not in before and b not in kept])
    block.schedule()
    for b in block.bindings:
        if b not in before:
            _type_again(b)
    return tuple(made)


def _type_again(b: Binding) -> None:
    """Updates the result types of a node whose operands now hold all unit vectors."""
    if b.blocks:
        for v in b.outputs:
            if v is not None and v.shape:
                v.type = TensorType(v.dtype, (None, *v.shape[1:]))
        return
    for v, type_ in zip(b.outputs, types_of(b), strict=False):
        if v is not None and type_ is not None:
            v.type = type_


def _stacked(v: Var, unit: Var) -> TensorType:
    """Returns the type of stacked products."""
    return TensorType(v.dtype, None if v.shape is None else (element_count(unit.shape), *v.shape))


def _whole(flat: Var, target: Var, x: Var) -> Var:
    """Returns the Jacobian in the shape *target, *value."""
    made: Var = op.Reshape(flat, joined([sizes_of(target, 0, None), sizes_of(x, 0, None)]))
    if target.shape is not None and x.shape is not None:
        made.type = TensorType(flat.dtype, (*target.shape, *x.shape))
    return made
