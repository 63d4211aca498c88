"""Recomputed weights of half precision pass the proof, and an ill-typed model is the user's fault."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from onnxgrad import verify
from onnxgrad.errors import InputError
from onnxgrad.functions import optimize
from tests.rewriting import model_of


@pytest.mark.parametrize("n", [4, 64])
@pytest.mark.parametrize(
    "body", ["a = MatMul (x, w) y = Mul (a, s)", "a = Gemm (x, w, c) y = Add (a, s)"]
)
def test_recomputed_float16_weights_pass_and_a_change_does_not(n: int, body: str) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "w": random.standard_normal((n, 8)) * 0.1,
        "s": random.standard_normal(8) + 2,
        "c": np.ones(8),
    }
    text = f"g (float16[N,{n}] x) => (float16[N,8] y) {{ {body} }}"
    used = {k: v.astype(np.float16) for k, v in arrays.items() if f", {k}" in body}
    given = model_of(text, used)
    found = optimize(given)
    assert len(found.graph.node) == 1
    for t in found.graph.initializer:
        t.CopyFrom(
            numpy_helper.from_array((numpy_helper.to_array(t) * 1.02).astype(np.float16), t.name)
        )
    assert not verify(given, found).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float"])
def test_an_ill_typed_convolution_is_the_users(dtype: str) -> None:
    """Conv takes no bfloat16 at opset 17, and one dtype only; folding the scale was an internal error."""
    text = f"""g (bfloat16[1,3,6,6] x) => (bfloat16[1,8,6,6] y) <{dtype}[8,3,1,1] w = {{{", ".join(["1"] * 24)}}}> {{
        a = Conv (x, w) y = Mul (a, s) }}"""
    with pytest.raises(InputError, match="not a valid ONNX model"):
        optimize(model_of(text, {"s": np.full((8, 1, 1), 2, ml_dtypes.bfloat16)}), verify=False)
