"""The passes that merge parallel products into one."""

from __future__ import annotations

from onnxgrad.laws.combine_parallel.conv import convs_of_one_input
from onnxgrad.laws.combine_parallel.dense import products_of_equal_shapes
from onnxgrad.laws.combine_parallel.gemm import gemms_of_one_left
from onnxgrad.laws.combine_parallel.matmul import products_of_one_left, products_of_one_right
from onnxgrad.laws.combine_parallel.splits import lift_above_split
from onnxgrad.passes.base import Merge, Provider, family_pass
from onnxgrad.rewrite.combine import Family


@family_pass(follow=lift_above_split)
def combine_parallel_matmul(merge: Merge = "auto", provider: Provider = "cpu") -> Family:
    """x @ w1, x @ w2, ... = split(x @ concat(w1, w2, ...)), biases and a common activation
    included.

    `merge`: always, auto (a static rule for `provider`, see `laws.combine_parallel.merging`) or
    never. `check` may refuse a group of branches (Python only).
    """
    return products_of_one_left(merge, provider)


@family_pass()
def combine_parallel_matmul_right() -> Family:
    """x1 @ w, x2 @ w, ... = split(concat(x1, x2, ...) @ w) along the rows: the mirror case. Not in
    any preset.

    The left operands are activations, so their Concat runs every time: it pays for many small ones.
    """
    return products_of_one_right()


@family_pass(follow=lift_above_split)
def combine_parallel_gemm(merge: Merge = "auto", provider: Provider = "cpu") -> Family:
    """Gemm(x, w1, c1), Gemm(x, w2, c2), ... = split(Gemm(x, concat(w1, w2, ...), concat(c1, c2,
    ...))).

    Options as for combine-parallel-matmul. A branch without bias gets one of -0.0, so that all can
    be one Gemm. If all weights of the products of x are constants, a MatMul with or without a bias,
    transB, and alpha and beta that are powers of two may stand beside each other.
    """
    return gemms_of_one_left(merge, provider)


@family_pass(follow=lift_above_split)
def combine_parallel_conv(merge: Merge = "auto") -> Family:
    """Conv(x, w1, c1), Conv(x, w2, c2), ... = split(Conv(x, concat(w1, w2, ...), concat(c1, c2,
    ...))), in 1-D to 3-D.

    A branch without bias gets one of -0.0. Groups are concatenated group by group and the outputs
    gathered back. `merge`: always, auto (see `laws.combine_parallel.conv`) or never.
    `check` may refuse a group of branches (Python only).
    """
    return convs_of_one_input(merge)


@family_pass(follow=lift_above_split)
def combine_parallel_dense(share_left: bool = True) -> Family:
    """x @ w1, x @ w2, ... of equal shapes = the rows of stack(x, x, ...) @ stack(w1, w2, ...): one
    batched product.

    MatMul of any equal rank (2 is dense, 3 is nn.batch_matmul) and Gemm, with a bias on all
    branches or on none. `share_left`: only products of one left operand; without it any independent
    products of equal shapes. In no preset.
    """
    return products_of_equal_shapes(share_left)
