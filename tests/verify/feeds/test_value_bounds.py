"""onnxgrad/verify/feeds/value_bounds.py: what the consumers of an input ask of its values."""

from __future__ import annotations

import math

import pytest

from onnxgrad.verify.feeds.data_flow import DataFlow
from onnxgrad.verify.feeds.value_bounds import Uses, uses_of
from tests.helpers import parse

# the table has 5 rows: an index is from 0 to 4 where Gather reads it
INDICES = {
    "y = Gather (table, i)": (0, 4),
    "j = MemcpyToHost (i) y = Gather (table, j)": (
        0,
        4,
    ),  # onnxruntime writes these two around CUDA's kernels
    "j = MemcpyFromHost (i) y = Gather (table, j)": (0, 4),
    "two = Constant <value_int = 2> () j = Mul (i, two) y = Gather (table, j)": (0, 2),
    "one = Constant <value_int = 1> () j = Sub (i, one) y = Gather (table, j)": (1, 5),
    "one = Constant <value_int = 1> () j = Sub (one, i) y = Gather (table, j)": (-3, 1),
    "one = Constant <value_int = 1> () j = Add (i, one) k = Neg (j) y = Gather (table, k)": (
        -math.inf,
        math.inf,
    ),
}
# Upsample accepts no factor below 1, Resize would drop samples; more than double only costs time
SCALES = {
    "y = Upsample (x, s)": (9, 1, 2),
    'y = Resize <mode = "linear"> (x, , s)': (19, 1, 2),
    "h = Div (x, s) y = Relu (h)": (19, 0.5, 2),
    "h = Mul (x, s) y = Log (h)": (19, -math.inf, math.inf),
}


def uses(text: str, name: str, opset: int = 21) -> Uses:
    return uses_of(DataFlow(parse(text, opset=opset)), name)


@pytest.mark.parametrize("nodes", INDICES)
def test_an_index_names_a_row_of_the_table(nodes: str) -> None:
    found = uses(f"g (float[5,3] table, int64[2] i) => (float[2,3] y) {{ {nodes} }}", "i")
    assert (found.low, found.high) == INDICES[nodes]


@pytest.mark.parametrize("nodes", SCALES)
def test_bounds_of_factors(nodes: str) -> None:
    opset, low, high = SCALES[nodes]
    found = uses(
        f"g (float[1,1,2,2] x, float[4] s) => (float[N,C,H,W] y) {{ {nodes} }}", "s", opset
    )
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize(
    ("operand", "count"), [("starts", False), ("axes", False), ("steps", True)]
)
def test_steps_of_a_slice_are_positive(operand: str, count: bool) -> None:
    text = """g (float[9] x, int64[1] starts, int64[1] ends, int64[1] axes, int64[1] steps) => (float[N] y) {
                y = Slice (x, starts, ends, axes, steps) }"""
    assert uses(text, operand).count is count


@pytest.mark.parametrize(
    ("node", "longest"),
    [
        ("y = ReverseSequence (x, n)", 5),
        ("y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, n)", 5),
        ("y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)", 2),
        ("y = RNN <hidden_size = 4> (x, w, r, , n)", 5),
    ],
)
def test_a_length_is_no_more_than_the_axis_of_time(node: str, longest: int) -> None:
    found = uses(
        f"g (float[5,2,3] x, float[1,4,3] w, float[1,4,4] r, int64[B] n) => (float[A,B,C] y) {{ {node} }}",
        "n",
    )
    assert (found.low, found.high) == (0, longest)
