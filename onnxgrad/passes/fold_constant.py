"""Constant folding: numpy where it is exact to the bit, onnxruntime in a child process for the
rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emit, emitting
from onnxgrad.ir.emission.emitter import Emitter, in_force
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.origins import note_folded, use_behind
from onnxgrad.ir.program import Program
from onnxgrad.ir.sizes import least
from onnxgrad.ir.type_inference import per_binding
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements, sizes
from onnxgrad.ir.type_inference.symbolic_shapes import refine
from onnxgrad.ir.types import (
    FLOAT_DTYPES,
    Array,
    Shape,
    TensorType,
    TypeMismatch,
    byte_count,
    is_static,
    numpy_dtype,
    same_dim,
)
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import EVALUATED, MOVES, evaluate
from onnxgrad.laws.remove_noops import is_barrier
from onnxgrad.options import Range
from onnxgrad.passes.base import Count, Pass, register, roots
from onnxgrad.passes.folded_values import (
    growth,
    outside_bytes,
    reads_constants,
    results_read,
    sharing_constants,
    values_of,
)
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.running.session import RuntimeMissing

# operators that are never folded: their value may differ from run to run, or a runtime looks for
# the structure that folding would hide
_NEVER = {
    "Constant",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "Identity",
    "If",
    "Loop",
    "QuantizeLinear",
    "Scan",
    "SequenceMap",
}

# dtypes of sizes, and of comparisons of them
_SIZES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})

# a runtime folds such nodes, mostly Casts of float16 weights, when it loads the file
_TOO_LARGE = "the file would grow by more than max_share or max_growth of fold-constant"

# the largest intermediate result, in bytes, of a folding that onnxruntime computes
_LARGEST_STEP = 1 << 26
# time for all foldings by onnxruntime in one run of the pass, retries included
_SECONDS = 30.0


@register
@frozen
class FoldConstant(Pass):
    """f(c) = its value, for constants c: results that depend on constants only are computed now.

    `max_growth`: bytes that the file may grow by in all (removed weights and nodes count against
    it). `max_share`: the same as a share of the file. Random draws, control flow,
    (de)quantization, sequences and results of unknown size are never folded. `floats=false` leaves
    floating-point results alone, so that a model keeps its weights for training.
    """

    name: ClassVar[str] = "fold-constant"
    max_growth: Count = 1 << 20
    max_share: Annotated[float, Range(0, 1e6)] = 0.05
    floats: bool = True

    def run(self, program: Program, trace: Trace) -> None:
        """Folds everywhere. A binding that onnxruntime cannot evaluate stays."""
        # external data may be folded below. The bytes of the file itself are counted only when
        # needed: that takes a while, and most foldings make the file no larger
        outside = outside_bytes(program)
        budget = _Budget(
            lambda: min(self.max_growth, int(self.max_share * (program.proto_bytes + outside))),
            self.floats,
            trace,
        )
        for root in roots(program):
            for block in blocks_in(root):
                _fold_exactly(block, budget, trace)
                _fold_in_onnxruntime(block, budget, trace)


class _Budget:
    """The bytes that foldings may still add, over all passes and rounds of a run."""

    def __init__(self, limit: Callable[[], int], floats: bool, trace: Trace) -> None:
        self._limit = limit
        self.floats = floats
        self.trace = trace
        self.deadline = time.monotonic() + _SECONDS

    @cached_property
    def limit(self) -> int:
        """The bytes that all foldings together may add."""
        return self._limit()

    def has(self, growth: int) -> bool:
        """Whether that many bytes are left. Always true if the file becomes no larger."""
        return growth <= 0 or growth <= self.limit - self.trace.grown

    def takes(self, b: Binding) -> bool:
        """Whether constants of the dtypes of its results may be created at all."""
        return self.floats or all(v.dtype not in FLOAT_DTYPES for v in results_read(b))

    def pays(self, growth: int) -> bool:
        """Whether a folding that adds `growth` bytes is allowed. If so, deducts them."""
        if not self.has(growth):
            return False
        self.trace.grown += growth
        return True

    def allows(self, b: Binding) -> bool:
        """Whether the results of `b` may be created as constants. If so, deducts their bytes."""
        if not self.takes(b):
            return False
        if self.pays(_growth(b)):
            return True
        self.trace.missed("fold_constant", b, _TOO_LARGE)
        return False


def _fold_exactly(block: BindingBlock, budget: _Budget, trace: Trace) -> None:
    block.schedule()
    together = _paid_together(block, budget)
    known = KnownElements()
    for b in list(block.bindings):
        if trace.stopped:
            return
        constant = reads_constants(b)
        if b.is_op("Reshape") and b in block.bindings:
            _copy_sizes(b, known, trace)
        # cheap checks first: this loop visits every binding of the model
        if not (constant or _may_hold_sizes(b)) or b not in block.bindings or not _foldable(b):
            continue
        if len(b.outputs) > 1:
            continue
        if constant and _size(b) is None:
            _type_again(b)
        array = _known_sizes(b.out, known)
        if (
            array is None
            and constant
            and _size(b) is not None
            and (b in together or budget.has(_growth(b)))
        ):
            array = evaluate(b)
        if array is not None and budget.takes(b) and (b in together or budget.pays(_growth(b))):
            _replace(b, {b.out: array}, trace)


def _paid_together(block: BindingBlock, budget: _Budget) -> set[Binding]:
    """The bindings whose groups fit into the budget as a whole, however much each binding adds
    alone. Deducts the bytes of these groups.
    """

    def foldable(b: Binding) -> bool:
        return b.op in EVALUATED and _foldable(b) and _size(b) is not None and budget.takes(b)

    found: set[Binding] = set()
    for group in sharing_constants(block, foldable):
        small = len(group) > 1 and max(_size(b) or 0 for b in group) <= _LARGEST_STEP
        if small and budget.pays(growth(group, _bytes)):
            found.update(group)
    return found


def _bytes(v: Var) -> int:
    return byte_count(v.type) or 0


def _type_again(b: Binding) -> None:
    """Infers the type again: it was inferred before the operands (such as the sizes of an Expand)
    were constant, or never, as in a function.
    """
    try:
        found = per_binding.types_of(b)[0]
    except TypeMismatch:
        return
    if isinstance(found, TensorType) and is_static(found.shape) and b.out.dtype in (0, found.dtype):
        b.out.type = found


def _may_hold_sizes(b: Binding) -> bool:
    out = b.outputs[0] if b.outputs else None
    return out is not None and out.dtype in _SIZES and out.rank in (0, 1)


def _known_sizes(out: Var, known: KnownElements) -> Array | None:
    """The value of shape arithmetic if all its sizes are known, although the tensor is computed at
    run time.
    """
    if out.dtype not in _SIZES or out.rank not in (0, 1):
        return None
    found = sizes(out, known)
    if found is None or any(not isinstance(d, int) for d in found):
        return None
    if out.rank == 1 and out.shape is not None and out.shape[0] not in (len(found), None):
        return None
    return np.array(found, numpy_dtype(out.dtype)).reshape([len(found)] if out.rank else [])


def _copy_sizes(b: Binding, known: KnownElements, trace: Trace) -> None:
    """Reshape(x, sizes) = Reshape(x, (0, n, -1)), which copies the sizes that stay."""
    x, target = b.inputs[0], b.operand(1)
    if x is None or target is None or target.is_constant or target.definition is None or b.has_refs:
        return
    if is_barrier(target.definition):
        return
    wanted = sizes(target, known)
    if wanted is None or not _may_copy(x.shape, wanted):
        return
    if -1 in wanted and b.attr("allowzero", 0) and any(least(d) == 0 for d in wanted):
        return  # the result has no type; models have very many of these
    found = refine(b.node, b.inputs, known)
    if found is None or None in found[0]:
        return
    copied = _copies(x.shape, found[0], wanted)
    if copied is None:
        return
    trace.fired("reshape_by_copies", str(b), [b.out.name])
    with emitting(b.block, sources=[b], made_by="reshape_by_copies"):
        made = constant(np.array(copied, np.int64), name=f"{target.name}_folded")
        b.block.set_operand(b, 1, made)
    if 0 in copied and b.attr("allowzero", 0):
        b.set_attribute("allowzero", 0)
    target.definition.block.remove_unused([target.definition])


def _may_copy(source: Shape | None, wanted: Shape) -> bool:
    """Whether at most one size is open, besides sizes that the operand has on the same axis."""
    opens = [i for i, d in enumerate(wanted) if not isinstance(d, int) or d <= 0]
    kept = [i for i in opens if source is not None and source[i : i + 1] == wanted[i : i + 1]]
    return len(opens) - len(kept) - sum(wanted[i] in (0, -1) for i in opens) < 2


def _copies(source: Shape | None, result: Shape, wanted: Shape) -> list[int] | None:
    """Returns a constant target of Reshape. A single open size becomes -1. If several are open,
    those that the operand has on the same axis become 0, and -1 stays where the target `wanted` has
    it.

    No other size may become -1, because a -1 fails if another size is 0.
    """
    target = [d if isinstance(d, int) and d > 0 else -1 for d in result]
    if target.count(-1) < 2:
        return target
    for i, d in enumerate(result):
        if target[i] > 0:
            continue
        if source is not None and i < len(source) and same_dim(source[i], d):
            target[i] = 0
        elif wanted[i] != -1:
            return None
    return target


def _fold_in_onnxruntime(block: BindingBlock, budget: _Budget, trace: Trace) -> None:
    folded: dict[Binding, None] = {}
    for b in block.bindings:
        if not reads_constants(b, folded) or not any(b.inputs) or not _foldable(b):
            continue
        size = _size(b)
        if size is not None and size <= _LARGEST_STEP:
            folded[b] = None
    wanted = [
        b
        for b in folded
        if any(u not in folded or not budget.takes(u) for v in results_read(b) for u in v.users)
    ]
    wanted = [b for b in wanted if budget.allows(b)]
    if wanted and not trace.stopped:
        try:
            values = values_of(block, list(folded), wanted, budget.deadline)
        # onnxruntime is optional: bindings that numpy cannot fold stay
        except RuntimeMissing as missing:
            trace.notes[f"some constants stay as they are: {missing}"] = None
            return
        moves = all(b.op in MOVES for b in folded)
        for b, found in values:
            arrays = {v: a for v, a in found.items() if isinstance(a, np.ndarray)}
            if len(arrays) == len(found) and not trace.stopped:
                rounds = any(a.dtype.kind not in "biu" for a in arrays.values())
                trace.rounded = trace.rounded or (rounds and not moves)
                _replace(b, arrays, trace, by_runtime=True)


def _foldable(b: Binding) -> bool:
    return (
        b.domain == ""
        and b.op not in _NEVER
        and not draws(b)
        and not b.blocks
        and not b.has_refs
        and not is_barrier(b)
        and any(v is not None for v in b.outputs)
        and not any(v is not None and v.returned for v in b.outputs)
    )


def _size(b: Binding) -> int | None:
    """The bytes of the results; None if they are unknown, and for strings."""
    sizes = [None if v.dtype == TensorProto.STRING else byte_count(v.type) for v in results_read(b)]
    return None if None in sizes else sum(n or 0 for n in sizes)


def _growth(b: Binding) -> int:
    """Bytes the file gains: the results, less the node and the constants that only it reads."""
    dying: int = b.node.ByteSize() - sum(len(v.name) for v in results_read(b))
    for v in {
        v
        for v in b.inputs
        if v is not None and v.is_constant and v.use_count == 1 and not v.is_input
    }:
        dying += _bytes(v)
    return (_size(b) or 0) - dying


def _replace(
    b: Binding, arrays: Mapping[Var, Array], trace: Trace, *, by_runtime: bool = False
) -> None:
    rounds = any(a.dtype.kind not in "biu" for a in arrays.values()) and b.op not in MOVES
    trace.rounded = trace.rounded or rounds
    if by_runtime:
        use_behind(b)
    trace.fired("fold_constant", str(b), [v.name for v in arrays])
    # `emitting` checks its arguments, which takes longer than the rest
    with in_force(Emitter(b.block, emit, None, [b], "fold_constant")):
        made = {v: constant(array, name=f"{v.name}_folded") for v, array in arrays.items()}
        if by_runtime and b.block.program.derivations is not None:
            note_folded(b, made)
        for v, new in made.items():
            b.block.replace(v, new)
    b.block.remove_unused([b])
