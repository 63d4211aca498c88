"""The passes that are tables of rewrite rules: the options of each, its rules in the order in which
they are tried, and the passes over families of parallel branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from onnxgrad.frozen import frozen
from onnxgrad.ir.program import Program
from onnxgrad.laws.adjust_matmul_order import order_of_products
from onnxgrad.laws.composites.activations import ACTIVATIONS
from onnxgrad.laws.composites.attention import (
    attention,
    attention_of_groups,
    attention_of_rows,
    attention_without_nan,
)
from onnxgrad.laws.composites.lower_composites import (
    group_normalization,
    skip_layer_normalization,
    skip_simplified_layer_normalization,
    sum_before_normalization,
    swish,
)
from onnxgrad.laws.composites.normalization import (
    bias_of_layer_normalization,
    layer_normalization,
    over_root_mean_square,
    rms_normalization,
    rms_normalization_in_float,
)
from onnxgrad.laws.composites.raise_for_onnxruntime import (
    fast_gelu,
    multi_head_attention,
    multi_head_attention_of_attention,
)
from onnxgrad.laws.composites.rotary import rotary_embedding
from onnxgrad.laws.einsum import einsum_of_one, einsum_of_two
from onnxgrad.laws.expand_matmul_of_sum import contracted, expanded
from onnxgrad.laws.flatten_products import (
    elementwise_of_rows,
    gemm_of_matrices,
    gemm_of_rows,
    product_of_rows,
    rows_of_rows,
)
from onnxgrad.laws.fold_bias import bias_of_product, sum_of_gemms
from onnxgrad.laws.fold_scale_axis.backward import scale_behind_product
from onnxgrad.laws.fold_scale_axis.forward import scale_in_front_of_product
from onnxgrad.laws.joined_parts import JOINED_PARTS
from onnxgrad.laws.merge_consecutive import CONSECUTIVE, ONCE, where_of_constant
from onnxgrad.laws.open_if import if_of_constant
from onnxgrad.laws.quantized.through import quantize_of_dequantize
from onnxgrad.laws.remove_noops import (
    NEUTRAL_ELEMENTS,
    NOOPS,
    initial_state_of_zeros,
    range_of_scalars,
    transpose_in_order,
)
from onnxgrad.laws.reorder_gather_matmul import (
    gathers_of_columns,
    gathers_of_rows,
    product_of_gathered_matrices,
)
from onnxgrad.laws.select_rows import rows_of_result
from onnxgrad.laws.sequences import SEQUENCES
from onnxgrad.laws.simplify_arithmetic import (
    NUMBERS,
    SIGNS,
    add_two_constants,
    times_reciprocal_of_equal_shape,
)
from onnxgrad.laws.simplify_inference import (
    batch_norm,
    batch_norm_after_product,
    batch_norm_before_conv,
    dropout,
)
from onnxgrad.laws.simplify_transpose import (
    GEMM_RULES,
    concat_of_transposes,
    transpose_of_matmul,
    transpose_of_matmul_if_free,
    transpose_of_transpose,
    transpose_through_constant,
    transpose_through_elementwise,
    transpose_through_two,
)
from onnxgrad.laws.squeeze_and_reshape import (
    AXES,
    reduce_of_transpose,
    reshape_of_reshape,
    reshape_of_transpose,
    transpose_of_reshape,
    transpose_through_reduce,
)
from onnxgrad.laws.sums import common_factor, sum_of_sums
from onnxgrad.passes.base import Count, Pass, Provider, register, rule_pass
from onnxgrad.passes.fold_constant import FoldConstant
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import Rule

# --- shorter forms


@rule_pass()
def remove_noops(floats: bool = True) -> Sequence[Rule]:
    """f(x) = x: Identity, Cast to the same type, Expand, Reshape, Slice that change nothing, Concat
    of one, Split into one, f(f(x)) = f(x), x - 0, x 1, an initial state of zeros.

    Squeeze, Unsqueeze and Reshape in a row become one, and a reduction keeps or drops its axes
    itself. Exact for every value. `floats=false` keeps operators that are no-ops because of a
    constant (x 1, x - 0, Where): the constant may be a weight to train.
    """
    exact = [*NOOPS, *AXES, *ONCE, range_of_scalars]
    if not floats:
        return exact
    return [*exact, where_of_constant, initial_state_of_zeros, *NEUTRAL_ELEMENTS]


@rule_pass()
def open_if() -> Sequence[Rule]:
    """If(true, f, g) = f, If(false, f, g) = g: the branch that is always taken stands in the
    enclosing block.
    """
    return [if_of_constant]


@rule_pass()
def merge_consecutive() -> Sequence[Rule]:
    """-(-x) = x, x + -z = x - z, Clip(Relu(x)) = Clip(x), Clip, Concat, Gather twice as one, Conv
    of Pad, Min of Max, Where of Not, Einsum that is a MatMul.

    Also Split, Slice and Gather of a Concat, Concat of a Split, sequences whose elements are known,
    QuantizeLinear of DequantizeLinear, Cast of ConstantOfShape, and rows that are made for a
    MatMul. Exact: the same bits for every value, but for the sign of a NaN, and of a zero that Max
    compares with the other zero.
    """
    products = [product_of_rows, einsum_of_one, einsum_of_two]
    return [*SIGNS, *CONSECUTIVE, *JOINED_PARTS, *SEQUENCES, *products, quantize_of_dequantize]


@rule_pass(rounds=True)
def simplify_arithmetic(exact: bool = True) -> Sequence[Rule]:
    """-(-x) = x, x + -z = x - z; with exact=false also (x 2) 3 = x 6, a b + a c = a (b + c), Sum of
    Sum.

    `exact`: only the laws that return the same bits for every value. The others are equal for real
    numbers and round in another order.
    """
    return SIGNS if exact else (*SIGNS, *NUMBERS, add_two_constants, common_factor, sum_of_sums)


@rule_pass()
def simplify_inference(only_after_products: bool = False) -> Sequence[Rule]:
    """BatchNormalization -> multiply and add, Conv(BN(x)) -> Conv(x); Dropout(x) -> x, where they
    do not train.

    `only_after_products`: take a BatchNormalization apart only after a product, whose weight and
    bias can then take scale and shift; elsewhere two elementwise kernels would replace one.
    """
    alone = batch_norm_after_product if only_after_products else batch_norm
    return [batch_norm_before_conv, alone, dropout]


# --- transposes


@rule_pass()
def simplify_transpose(always: bool = False, floats: bool = True) -> Sequence[Rule]:
    """T(T(x)) = x, T(f(T(x))) = f(x), T(a @ b) = T(b) @ T(a), Gemm(T(a), b) = Gemm(a, b, transA),
    Reduce(T(x)) = Reduce(x).

    `always`: push a transpose below a product even if neither operand's transpose cancels or folds,
    as gradient graphs need; otherwise only if one of them costs nothing. `floats=false` transposes
    no constant: it may be a weight to train.
    """
    of_matmul = transpose_of_matmul if always else transpose_of_matmul_if_free
    two = transpose_through_constant if floats else transpose_through_two
    through = [transpose_through_elementwise, two, reduce_of_transpose, transpose_through_reduce]
    return [transpose_in_order, transpose_of_transpose, *through, of_matmul, *GEMM_RULES]


@rule_pass()
def transpose_after_concat() -> Sequence[Rule]:
    """Concat(T(a), T(b), ...) along k = T(Concat(a, b, ...)) along perm[k]."""
    return [concat_of_transposes]


# --- scales and biases into weights


@rule_pass(rounds=True)
def backward_fold_scale_axis(scalars: bool = False, runtime: bool = False) -> Sequence[Rule]:
    """(x @ w) * s = x @ (w * s): a constant multiply per channel moves into Conv, ConvTranspose,
    MatMul, Gemm above it.

    `scalars`: also one factor for all channels. `runtime`: also a scale known only at run time,
    unless it is a divisor: the weight is then scaled in every run.
    """
    return [scale_behind_product(scalars, runtime)]


@rule_pass(rounds=True)
def forward_fold_scale_axis(scalars: bool = False, runtime: bool = False) -> Sequence[Rule]:
    """(x * s) @ w = x @ (s * w): a constant multiply per channel moves into the products that read
    it, if all can.

    `scalars`: also one factor for all channels. `runtime`: also a scale known only at run time,
    unless it is a divisor: the weight is then scaled in every run.
    """
    return [scale_in_front_of_product(scalars, runtime)]


@rule_pass(rounds=True)
def fold_bias() -> Sequence[Rule]:
    """Conv(x, w, c) + d = Conv(x, w, c + d), d constant per output channel; ConvTranspose and
    Gemm likewise.
    """
    return [bias_of_product]


# --- the order and form of products


@rule_pass(rounds=True)
def accumulate_gemms() -> Sequence[Rule]:
    """Gemm(a, v, c) + Gemm(b, w, d) = Gemm(a, v, Gemm(b, w, c + d)).

    The kernel adds as it multiplies: 0.77 to 1.00 of the time at most sizes, 1.08 at worst
    (scripts/bench_products.py).
    """
    return [sum_of_gemms]


@rule_pass()
def adjust_matmul_order(rows: Count = 0) -> Sequence[Rule]:
    """(x @ a) @ b = x @ (a @ b), whichever takes fewer multiplications for the shapes at hand.

    It covers MatMul with batch axes, a transposed a @ b, and Gemm with transA and transB. A product
    of constants is free, because `fold-constant` computes it. If the number of rows is unknown, an
    order must be cheaper for every number of them; `rows`, unless 0, stands for it. A long chain
    changes one exchange at a time. Both orders round differently, so no preset has this pass.
    """
    return order_of_products(rows)


@rule_pass()
def expand_matmul_of_sum(rows: Count = 0) -> Sequence[Rule]:
    """x @ (w + p @ q) = x @ w + (x @ p) @ q, whichever is cheaper.

    Constants are merged; p and q that are computed stay apart for few rows. p @ q may be scaled by
    a number, the sum transposed, the product a Gemm, and a bias may stand between the sums. The
    matrices have known sizes; p and q may be those of each batch. If the number of rows is unknown,
    a form must be cheaper for every number of them; `rows`, unless 0, stands for it. Both forms
    round differently, so no preset has this pass.
    """
    return [*expanded(rows), *contracted(rows)]


@rule_pass()
def reorder_gather_matmul(rows: Count = 0) -> Sequence[Rule]:
    """Gather(x @ w, i) = Gather(x, i) @ w or x @ Gather(w, i), whichever is cheaper.

    Along rows (the last token of a sequence, a table with a weight after it) and along columns,
    w a matrix of known sizes; and one matrix of a table for each batch (adapters chosen by an
    index). If the number of rows is unknown, a form must be cheaper for every number of them;
    `rows`, unless 0, stands for it. No sum changes its order.
    """
    return [*gathers_of_rows(rows), *gathers_of_columns(rows), product_of_gathered_matrices]


@rule_pass()
def select_rows() -> Sequence[Rule]:
    """f(x)[rows] = f(x[rows]) for products with a matrix, elementwise f, normalisations and
    Attention: rows that nothing reads are not computed.

    Gather, GatherND and Gather from flattened rows, if they take at most a quarter of the rows,
    such as the first token of each sequence. onnxruntime may round a product of one row otherwise.
    """
    return [rows_of_result]


@rule_pass()
def flatten_products() -> Sequence[Rule]:
    """x @ w + c = Gemm(x, w, c), or reshape(Gemm(rows of x, w, c)): one Gemm of all rows, whose
    Reshapes meet those beside it.

    onnxruntime makes the same Gemms, but only after it has merged Reshapes, so two of them stay at
    each product of a batch. At most one size may be unknown, as in onnxruntime. A Transpose that
    moves axes of size 1 only becomes part of the Reshape beside it.
    """
    still = [transpose_of_reshape, reshape_of_transpose]
    return [
        gemm_of_matrices,
        gemm_of_rows,
        reshape_of_reshape,
        rows_of_rows,
        elementwise_of_rows,
        *still,
    ]


@rule_pass()
def divide_by_root() -> Sequence[Rule]:
    """x (1 / sqrt(mean(x^2) + e)) = x / sqrt(mean(x^2) + e), which onnxruntime fuses with the scale
    after it; x (1 / y) = x / y of equal shapes.
    """
    return [over_root_mean_square, times_reciprocal_of_equal_shape]


# --- composite operators: a file's constants are rounded, those of an operator are not


@rule_pass(rounds=True)
def raise_composites() -> Sequence[Rule]:
    """softmax(q k^T) v = Attention(q, k, v), and so on: exporters' chains into one operator each.

    RMSNormalization, RotaryEmbedding, LayerNormalization, Gelu, HardSigmoid, HardSwish and Softmax
    as well, where the model's opset has them and onnxruntime a kernel for the dtype. Not raised,
    because the kernel is slower or no faster than the chain: GroupNormalization, Swish, Mish.
    onnxruntime's Attention (1.31.1) refuses a size of 0, which the chain takes.
    """
    return [
        layer_normalization,
        bias_of_layer_normalization,
        rms_normalization,
        rms_normalization_in_float,
        *ACTIVATIONS,
        rotary_embedding,
        attention,
        attention_without_nan,
        attention_of_groups,
        attention_of_rows,
    ]


@rule_pass(rounds=True)
def raise_for_onnxruntime(provider: Provider = "cpu") -> Sequence[Rule]:
    """softmax(q k^T) v = MultiHeadAttention(q, k, v) of com.microsoft, for onnxruntime on the CPU.

    It also emits FastGelu for models below opset 20, which have no Gelu. No preset has this pass:
    `--for onnxruntime` adds it. onnxruntime makes the other operators of com.microsoft itself when
    it loads a model (SkipLayerNormalization, BiasGelu, QuickGelu, FusedConv, FusedMatMul).
    `provider=cuda`: no rewrite.
    """
    if provider != "cpu":
        return []
    return [
        fast_gelu,
        multi_head_attention,
        multi_head_attention_of_attention,
    ]


@rule_pass(rounds=True)
def lower_composites(provider: Provider = "cpu") -> Sequence[Rule]:
    """Swish(x) = x sigmoid(x), and so on: one operator into the chain that is faster on `provider`.

    On the CPU: GroupNormalization, Swish, com.microsoft's SkipLayerNormalization and
    SkipSimplifiedLayerNormalization, and a sum that onnxruntime would fuse into one of these.
    `provider=cuda`: no rewrite.
    """
    if provider != "cpu":
        return []
    return [
        group_normalization,
        swish,
        skip_layer_normalization,
        skip_simplified_layer_normalization,
        sum_before_normalization,
    ]


@register
@frozen
class FoldScaleAxis(Pass):
    """(x @ w) * s = x @ (w * s), then (x * s) @ w = x @ (s * w), then weight * scale becomes the
    weight.

    Options as for backward-fold-scale-axis and forward-fold-scale-axis, which it runs, and
    fold-constant behind them.
    """

    name: ClassVar[str] = "fold-scale-axis"
    scalars: bool = False
    runtime: bool = False

    def run(self, program: Program, trace: Trace) -> None:
        """Behind products first: there a scale moves whatever its sign."""
        backward_fold_scale_axis(self.scalars, self.runtime).run(program, trace)
        forward_fold_scale_axis(self.scalars, self.runtime).run(program, trace)
        FoldConstant().run(program, trace)
