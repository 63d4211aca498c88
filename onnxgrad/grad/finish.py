"""Act three of `differentiate`: removes internal operators and unread values, simplifies the graph,
and orders its bindings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from onnx import TensorProto

from onnxgrad.grad.checkpointing.marks import drop
from onnxgrad.grad.checkpointing.views import hide_sizes
from onnxgrad.grad.integer_moves import move_integers
from onnxgrad.grad.prepare import Prepared
from onnxgrad.grad.registry import INTERNAL
from onnxgrad.grad.rules._by_blocks import beside_dequantised
from onnxgrad.grad.stops import STOPPED
from onnxgrad.grad.straight_through import SHADOWED, STRAIGHT_THROUGH
from onnxgrad.grad.weights.kept import kept
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.fill_and_reshape import with_type_of
from onnxgrad.ir.identity_barrier import remove_barrier
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.laws import (
    shapes,
    simplify_arithmetic,
    simplify_transpose,
    squeeze_and_reshape,
    sums,
)
from onnxgrad.laws.constant_values import folded
from onnxgrad.laws.remove_noops import NOOPS, times_one, transpose_in_order
from onnxgrad.laws.simplify_arithmetic import NUMBERS, SIGNS
from onnxgrad.passes.base import roots
from onnxgrad.passes.merge_equal import merge_bindings
from onnxgrad.passes.remove_unused import reachable
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import apply_rules


def finish(task: Prepared) -> None:
    """Restores the forward part, except for operators that rules replaced there (LSTM and GRU), and
    simplifies the backward part.

    Internal operators and anchors are removed first, because rewrite rules do not match through
    them. The order of the sinks comes last, because every other step moves bindings.
    """
    program, block = task.program, task.block
    drop(program.blocks())
    _lift_internal(program)
    for identity in task.anchors:
        if identity.is_live:  # removing the internal operators removed the paths in floats
            remove_barrier(identity, task.model_names)
    block.remove_unused()
    take_by_blocks(task)
    if task.request.simplify:
        simplify(program, task.requested, task.forward)
        if task.request.form == "fast":
            transpose_once(block, task.forward)
    move_integers(program, where=lambda b: b not in task.forward)
    drop_constants(block, task.weights)
    # remove functions if every call was opened; functions that nothing called before stay
    for key in set(task.functions) - reachable(program):
        del program.functions[key]
    hide_sizes(block, task.forward)
    sinks_last(block, task.forward)


# operators that exist only while a gradient is formed, and the operand that replaces each
_STANDING_FOR = {STOPPED: 0, SHADOWED: 1, STRAIGHT_THROUGH: 3}


def _lift_internal(program: Program) -> None:
    """Removes internal operators, in recomputed copies and nested blocks too."""
    for name, place in _STANDING_FOR.items():
        for b in [b for b in program.main.walk() if (b.domain, b.op) == (INTERNAL, name)]:
            value = b.inputs[place]
            if value is not None:
                b.block.replace(b.out, value)
            b.block.remove_unused([b])


def sinks_last(block: BindingBlock, forward: Collection[Binding]) -> None:
    """Puts emitted bindings that nothing reads at the end, the shallowest, which can run earliest,
    last of all. This saves memory in a run.

    onnxruntime walks depth-first from the graph's sinks, the last one first, and runs the bindings
    that each needs. In the order of the backward walk, the first parameter's gradient would run
    first, and with it the entire backward chain. Every other weight gradient would wait, and its
    activation and its adjoint would stay in memory.
    """
    block.schedule()
    depth: dict[Binding, int] = {}
    for b in block.bindings:
        depth[b] = 1 + max(
            (depth.get(v.definition, 0) for v in b.reads() if v.definition is not None), default=0
        )
    sinks = [
        b
        for b in depth
        if b not in forward and not any(v is not None and v.users for v in b.outputs)
    ]
    last = dict.fromkeys(sorted(sinks, key=lambda b: -depth[b]))
    block.bindings = dict.fromkeys(b for b in depth if b not in last) | last


# ---- simplification ------------------------------------------------------------------------------


TRANSPOSES = [
    transpose_in_order,
    simplify_transpose.transpose_of_transpose,
    simplify_transpose.transpose_of_matmul,
    *simplify_transpose.GEMM_RULES,
]

RULES = [
    *SIGNS,
    *NUMBERS,
    times_one,
    simplify_arithmetic.number_into_exponent,
    simplify_arithmetic.another_number_into_exponent,
    simplify_arithmetic.difference_of_squares,
    simplify_arithmetic.number_into_gemm,
    shapes.commuting_with_expand,
    shapes.left_of_expand,
    shapes.right_of_expand,
    shapes.where_of_expand,
    sums.common_factor,
    sums.sum_of_sums,
    sums.sum_with_scattered,
    sums.sum_of_reshapes,
    shapes.reshape_back,
    shapes.reshape_around_product,
    squeeze_and_reshape.reshape_of_reshape,
    squeeze_and_reshape.squeeze_of_squeeze,
    squeeze_and_reshape.squeeze_of_reduce,
    shapes.concat_of_reshapes,
    shapes.stack,
    simplify_transpose.transpose_of_product_of_transpose,
    simplify_transpose.concat_of_transposes,
    sums.sum_of_tiles,
    sums.add_of_tiles,
]


_ALL = [*TRANSPOSES, *RULES, *(law for law in NOOPS if law not in TRANSPOSES)]


def simplify(
    program: Program,
    variables: Iterable[Var],
    forward: Collection[Binding],
    trace: Trace | None = None,
) -> None:
    """Simplifies the bindings that the backward walk added, in place. Those in `forward` stay.

    variables: the requested initializers, which are never folded because their values will be
    replaced.
    """
    trace = trace or Trace()
    with variable(variables), kept(program, variables):
        for block in roots(program):
            apply_rules(block, _ALL, trace, where=lambda b: b not in forward)
            _fold_constants(block, forward)
            apply_rules(block, NOOPS, trace, where=lambda b: b not in forward)
            merge_bindings(block, trace, where=lambda b: b not in forward)
    for block in reversed(blocks_in(program.main)):
        block.remove_unused()


def _fold_constants(block: BindingBlock, forward: Collection[Binding]) -> None:
    """Evaluates bindings that depend only on small constants and known sizes."""
    block.schedule()
    with emitting(block, share=True):
        for b in [b for b in block.bindings if b not in forward and len(b.outputs) == 1]:
            value = folded(b)
            if value is not None:
                block.replace(b.out, value)
                block.remove(b)


# from which width of b on a transposition of its own takes less time than Gemm's transA, in
# columns, and relative to the width of a
_WIDE, _TIMES_AS_WIDE = 512, 2


def transpose_once(block: BindingBlock, forward: Collection[Binding]) -> None:
    """Replaces Gemm(a, b, transA=1), a weight's gradient, by a product with a transposed operand.

    onnxruntime's transA transposes `a` again for every 128 columns of b. If the products that read
    `a` are together at least twice as wide as `a`, they take 0.8 to 0.95 of the time this way
    (`scripts/bench_forms.py`). The Reshape between keeps onnxruntime from turning the Transpose
    into transA.
    """
    readers: dict[Var, list[Binding]] = {}
    for b in block.bindings:
        a = b.inputs[0] if b.inputs else None
        if a is not None and b not in forward and _is_transposed_product(b):
            readers.setdefault(a, []).append(b)
    with emitting(block, share=True, made_by="gradient"):
        for a, products in readers.items():
            x, size = _before_joining(a), (a.shape or (None,))[-1]
            widths = [b.out.shape[1] for b in products if b.out.shape is not None]
            wide = sum(n for n in widths if isinstance(n, int))
            if x is None or not isinstance(size, int) or not size:
                continue
            if wide < max(_WIDE, _TIMES_AS_WIDE * size):
                continue
            turned = op.Transpose(x, perm=[(x.rank or 0) - 1, *range((x.rank or 0) - 1)])
            rows = op.Reshape(turned, [size, -1])
            for b in products:
                block.replace(b.out, op.MatMul(rows, b.operand(1)))
    block.remove_unused()


def take_by_blocks(task: Prepared) -> None:
    """Replaces products with large dequantised matrices by products with their blocks: recomputed
    products, and those of the forward part whose blocks the backward part takes.

    A second reader of a DequantizeLinear would keep its float matrix from the forward part on. The
    fusion with MatMul by onnxruntime keeps the integers twice more, and rounds the other factor.
    """
    block, forward = task.block, task.forward
    products = [b for b in block.bindings if b.is_op("MatMul")]
    with emitting(block, share=True, made_by="gradient"):
        for b in sorted(products, key=lambda b: b in forward):
            x, w = b.inputs
            if b in forward and (task.request.intact or not _is_read_by_blocks(w)):
                continue
            product = x and w and beside_dequantised(x, w, transposed=True)
            if product is not None:
                out, name = b.out, b.out.name
                block.replace(out, with_type_of(product, out))
                if out.name == name:  # an output of the graph has kept its name
                    out.swap_names(product)
    block.remove_unused()


def _is_read_by_blocks(w: Var | None) -> bool:
    made = w and w.definition
    q = made.operand(0) if made and made.is_op("DequantizeLinear") else None
    return q is not None and q.use_count > 1


def _is_transposed_product(b: Binding) -> bool:
    """Whether `b` is Gemm(a, b, transA=1) in float32."""
    if not b.is_op("Gemm") or b.operand(2) is not None or b.out.dtype != TensorProto.FLOAT:
        return False
    return bool(b.attr("transA") and not b.attr("transB") and b.attr("alpha") == 1.0)


def _before_joining(a: Var) -> Var | None:
    """Returns x (..., K) of more than two axes of which `a` is the Reshape to (rows, K)."""
    x = a.definition.inputs[0] if a.definition is not None and a.definition.is_op("Reshape") else a
    if x is None or x.shape is None or a.shape is None or len(x.shape) <= 2:
        return None
    return x if x.shape[-1] == a.shape[-1] else None


def drop_constants(block: BindingBlock, kept: Collection[str]) -> None:
    """Removes the initializers that nothing reads, here and in nested blocks, except those of the
    model (`kept`).
    """
    for inner in blocks_in(block):
        for v in list(inner.initializers.values()):
            if not v.use_count and v.name not in kept:
                inner.remove_initializer(v)


@contextmanager
def variable(values: Iterable[Var]) -> Iterator[None]:
    """Treats initializers among `values` as variable, not constant, within this context."""
    weights = [v for v in values if v.initializer is not None and not v.variable]
    for v in weights:
        v.variable = True
    try:
        yield
    finally:
        for v in weights:
            v.variable = False
