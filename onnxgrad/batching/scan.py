"""The last resort: runs a node, or the whole model, once per row, in a Scan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from onnx import ValueInfoProto

from onnxgrad.batching.followed import Batched
from onnxgrad.batching.layout import OLDEST_SCAN, OWN, Dependent, Layout, Refused
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.batching.site import Site
from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.emission.emit import emit_with_blocks, emitting, nested_block
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import symbols
from onnxgrad.ir.type_inference.whole_model import is_invented
from onnxgrad.ir.types import Dim, TensorType, type_to_proto
from onnxgrad.ir.var import Var


def by_rows(at: Site) -> None:
    """Runs the node for each row. Raises Refused if a result is not a tensor of known shape."""
    b = at.binding
    for nested in (inner for block in b.blocks.values() for inner in block.walk()):
        if draws(nested) and not at.sizes_at.mapped:
            raise Dependent(f"{nested.op} in its body draws random numbers")
    results = [v for v in b.outputs if v is not None and v.use_count]
    _check(b.block, results, vague=at.sizes_at.mapped)
    mapped = [v for v in b.reads() if at.layouts.get(v) is not None]
    if (differing := ragged(b, mapped, ())) and at.sizes_at.mapped:
        raise Refused(f"the size of '{differing[0].name}' may differ from row to row")
    rows = [v for v in dict.fromkeys(b.reads()) if at.layouts.get(v) is not None]
    operands = [at.fronted(v) for v in rows]
    body = nested_block(f"{b.op}_of_a_row")
    inside: dict[Var, Var | None] = {v: _element(body, v, at.sizes_of(v)) for v in rows}
    made = dict(zip(results, _scan([b], body, inside, operands, results), strict=True))
    at.back(tuple(None if v is None else made.get(v) for v in b.outputs))


def model_by_rows(block: BindingBlock, inputs: Mapping[Var, Layout], why: str) -> Batched:
    """Runs the nodes that depend on rows, or draws random numbers, once per row. Each output must
    be a tensor of known rank whose size does not depend on the row. Raises Refused.
    """
    block.schedule()
    moving, known, differing = list[Binding](), set(inputs), dict[Var, None]()
    for b in block.bindings:
        nested = any(draws(inner) for inside in b.blocks.values() for inner in inside.walk())
        if nested or draws(b) or not known.isdisjoint(b.reads()):
            moving.append(b)
            differing.update(dict.fromkeys(ragged(b, known, differing)))
            known.update(v for v in b.outputs if v is not None)
    results = [v for v in block.outputs if v in known and not v.is_interface]
    for v in results:
        if v in differing:
            raise Refused(f"the size of output '{v.name}' may differ from row to row")
    _check(block, results, vague=True)
    done = Batched({**inputs}, RunTimeSizes(inputs, block.inputs), mapped=True)
    done.sizes.mapped = True
    done.scanned[f"the whole model: {why}"] += 1
    with emitting(block, made_by="vmap"):
        body, inside, operands = nested_block("model_of_a_row"), dict[Var, Var | None](), []
        for v, layout in inputs.items():
            shape, axis = v.shape or (), layout.axis
            one = shape if layout.own else (*shape[:axis], *shape[axis + 1 :])
            inside[v] = _element(body, v, one)
            if layout.own:
                v.type = TensorType(v.dtype, (*shape[:axis], 1, *shape[axis:]))
            rank = len(one) + 1
            front = [axis, *(i for i in range(rank) if i != axis)]
            operands.append(op.Transpose(v, perm=front) if axis else v)
            if not layout.own:
                with emitting(body, made_by="vmap"):
                    inside[v] = op.Unsqueeze(inside[v], [axis])
        made = _scan(moving, body, inside, operands, results)
        for v, rows in zip(results, made, strict=True):
            rows.type = TensorType(v.dtype, (1, *(v.shape or ())))
            done.layouts[rows] = OWN
            block.return_instead(v, rows)
    block.remove_unused(moving)
    return done


# the operands whose values decide the size of a result
_SIZED_BY: Mapping[str, Collection[int]] = {
    "CenterCropPad": (1,), "Col2Im": (1,), "Compress": (1,), "ConstantOfShape": (0,),
    "DFT": (1,), "Expand": (1,), "MelWeightMatrix": range(5), "NonMaxSuppression": range(5),
    "NonZero": (0,), "OneHot": (1,), "Pad": (1,), "Range": range(3), "Reshape": (1,),
    "Resize": range(1, 4), "STFT": (1,), "Slice": (1, 2, 4), "Split": (1,), "Tile": (1,),
    "TopK": (1,), "Unique": (0,), "Upsample": (1,),
}  # fmt: skip


def ragged(b: Binding, mapped: Collection[Var], before: Collection[Var]) -> list[Var]:
    """Returns the results whose size may differ from row to row: values of the rows (`mapped`)
    decide it, or an operand has such a size (`before`).
    """
    named = {s for v in b.block.program.main.inputs for d in v.shape or () for s in symbols(d)}
    unknown = [
        v
        for i, v in enumerate(b.outputs)
        if v is not None and not _is_sized(v, named) and not _is_steady(b, i, named, before)
    ]
    if any(v in before for v in b.reads()):
        return unknown
    if b.is_op("Loop"):
        body = b.blocks["body"]
        end, given = body.outputs[0], body.inputs[1]
        source = end.definition
        passes = end is given or (
            source is not None and source.is_op("Identity") and source.inputs[0] is given
        )
        ends = not passes and not end.is_constant and any(v in mapped for v in b.reads())
        return unknown if ends or b.operand(0) in mapped or b.operand(1) in mapped else []
    by = () if b.domain else _SIZED_BY.get(b.op, ())
    return unknown if any(b.operand(i) in mapped for i in by) else []


def _is_sized(v: Var, named: Set[str]) -> bool:
    """Whether the shape is known by numbers and the sizes that inputs name."""
    return v.shape is not None and all(d is not None and symbols(d) <= named for d in v.shape)


def _is_steady(b: Binding, index: int, named: Set[str], before: Collection[Var]) -> bool:
    """Whether the result is a state of a Loop that keeps the size of its first value."""
    body = b.blocks.get("body")
    first = b.operand(index + 2)
    if not b.is_op("Loop") or body is None or first is None or first in before:
        return False
    given, made = body.inputs[index + 2].shape, body.outputs[index + 1].shape
    if not _is_sized(first, named) or given is None or made is None or len(given) != len(made):
        return False
    return all(x == y or (_is_plain(x) and _is_plain(y)) for x, y in zip(given, made))


def _is_plain(d: Dim) -> bool:
    """Whether a size is a number or a name that a person gave: in a body both mean one size."""
    return isinstance(d, int) or (d is not None and symbols(d) == {d} and not is_invented(d))


def _check(block: BindingBlock, results: Sequence[Var], *, vague: bool) -> None:
    """Raises Refused unless a Scan can return these values; `vague`: also if sizes are not
    known.
    """
    if block.opsets.get("", 0) < OLDEST_SCAN:
        raise Refused(f"a Scan needs opset {OLDEST_SCAN}")
    for v in results:
        unknown = v.shape is None or (None in v.shape and not vague)
        if not isinstance(v.type, TensorType) or unknown:
            raise Refused(f"the shape of '{v.name}' is not known")


def _element(body: BindingBlock, v: Var, shape: Sequence[int | str | None]) -> Var:
    """Returns the input of a body for one row of a value."""
    name = body.program.names.fresh(f"{v.name}_row")
    return body.add_input(name, TensorType(v.dtype, tuple(shape)))


def _scan(
    bindings: Sequence[Binding],
    body: BindingBlock,
    inside: dict[Var, Var | None],
    operands: Sequence[Var],
    results: Sequence[Var],
) -> tuple[Var, ...]:
    """Returns the results of bindings with the rows in front. `inside`: operands in the body."""
    for b, copy in zip(bindings, clone_bindings(bindings, body, inside), strict=True):
        if draws(b):
            copy.node.name = b.node.name  # by which a proof finds it
    for v in results:
        made = inside[v]
        if made is None:
            raise InternalError(f"no copy of '{v.name}'")
        made.type = v.type  # onnxruntime wants the shape of every output
        body.declared[made] = ValueInfoProto(name=made.name, type=type_to_proto(v.type))
        body.add_output(made)
    types = [TensorType(v.dtype, (1, *(v.shape or ()))) for v in results]
    return emit_with_blocks("Scan", operands, {"body": body}, types, num_scan_inputs=len(operands))
