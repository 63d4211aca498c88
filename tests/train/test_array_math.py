"""Each function over arrays gives what onnxruntime gives for the operator of its name, in the same dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxgrad.train import array_math
from onnxgrad.verify.running.session import run
from tests.helpers import parse

FUNCTIONS = [name for name in vars(array_math) if onnx.defs.has(name)]
assert len(FUNCTIONS) > 15
A = np.array([[-1.5, 0.0, 2.25], [4.0, -0.0, 0.5]])
B = np.array([[1.0, 0.0, 3.0], [2.0, -1.0, 0.5]])


def call_of(name: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The node's text, and operands and attributes for the function."""
    if name == "Cast":
        return f"Cast <to = {TensorProto.DOUBLE}> (a)", [A], {"to": TensorProto.DOUBLE}
    if name.startswith("Reduce"):
        return f"{name} <keepdims = 0> (a)", [A], {"keepdims": 0}
    if name == "Clip":
        return "Clip (a, low, high)", [A, -1.0, 2.0], {}
    if name == "Where":
        return "Where (c, a, b)", [A > 0, A, B], {}
    if name == "And":
        return "And (c, d)", [A > 0, B > 0], {}
    if name in ("Sqrt", "Log", "Pow"):
        return (f"{name} (b2)", [B * B], {}) if name != "Pow" else ("Pow (b2, b)", [B * B, B], {})
    return (
        (f"{name} (a)", [A], {})
        if name in ("Abs", "Sign", "Cos", "Floor")
        else (f"{name} (a, b)", [A, B], {})
    )


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_onnxruntime(name: str, kind: str) -> None:
    text, operands, attributes = call_of(name)
    dtype = np.float32 if kind == "float" else np.float64
    result = {"Cast": "double", "And": "bool", "Equal": "bool", "Less": "bool", "Greater": "bool"}
    model = parse(f"""g ({kind}[2,3] a, {kind}[2,3] b, {kind}[2,3] b2, bool[2,3] c, bool[2,3] d, {kind} low, {kind} high)
        => ({result.get(name, kind)}{"" if "Reduce" in text else "[2,3]"} y) {{ y = {text} }}""")
    feeds = {
        "a": A.astype(dtype),
        "b": B.astype(dtype),
        "b2": (B * B).astype(dtype),
        "c": A > 0,
        "d": B > 0,
    }
    feeds |= {"low": np.array(-1, dtype), "high": np.array(2, dtype)}
    expected = run(model, feeds)["y"]
    with np.errstate(divide="ignore"):  # 0^-1
        found = getattr(array_math, name)(
            *(
                v.astype(dtype) if isinstance(v, np.ndarray) and v.dtype != bool else v
                for v in operands
            ),
            **attributes,
        )
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_numbers_of_python_take_the_dtype_of_what_they_meet() -> None:
    x = np.float32([1, 4])
    found = [
        array_math.Max(x, 0.1),
        array_math.Where(x > 2, x, 0.1),
        array_math.Pow(x, 2.0),
        0.1 * array_math.Sqrt(x),
    ]
    assert {f.dtype for f in found} == {np.dtype(np.float32)}
    assert array_math.Cast(np.float64(0.1), to=TensorProto.FLOAT).dtype == np.float32
    assert array_math.Cast(x, to=TensorProto.FLOAT).base is x  # no copy


def test_sums_along_axes() -> None:
    np.testing.assert_array_equal(
        array_math.ReduceSumSquare(A, [-1], keepdims=1), (A * A).sum(-1, keepdims=True)
    )
    np.testing.assert_array_equal(array_math.ReduceMean(A, [-2]), A.mean(-2, keepdims=True))
    np.testing.assert_array_equal(array_math.ReduceSum(A, [0], keepdims=0), A.sum(0))
