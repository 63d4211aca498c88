"""onnxgrad/verify/scales.py: the scale of inputs up to which float16 values suffice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import NotProved
from onnxgrad.verify import verify
from onnxgrad.verify.evidence import Scales
from tests.rewriting import model_of

RNG = np.random.default_rng(0)
# power of a spectrum: the square of a sum grows with the square of the amplitude
CONSTANTS = {
    "w": RNG.standard_normal((160, 20)).astype(np.float32) * np.float32(0.3), "eps": np.float32(1e-3)
}  # fmt: skip
POWER = "f = MatMul (x, w)  p = Mul (f, f)  z = Add (p, eps)  y = Log (z) }"


def spectrum(given: str = "float[N,160] x", before: str = "") -> onnx.ModelProto:
    return model_of(f"g ({given}) => (float[N,20] y) {{ {before} {POWER}", CONSTANTS)


def scales(model: onnx.ModelProto, **options: object) -> Scales:
    found = onnxgrad.float16(model, report=True, **options).proof.scales
    assert found is not None
    return found


def test_the_scale_at_which_a_value_leaves_float16() -> None:
    """On a CPU, onnxruntime computes these in float32: its results alone show no infinity."""
    found = scales(spectrum())
    assert (found.held, found.failed) == ("scale 10", "scale 100")
    assert found.line.startswith("inputs hold up to scale 10; fails at scale 100 (p: reaches 3")
    assert found.to_dict()["line"] == found.line


def test_given_inputs_are_scaled() -> None:
    x = RNG.standard_normal((2, 160)).astype(np.float32)
    assert scales(spectrum(), inputs={"x": 0.1 * x}).failed == "scale 1000"
    assert scales(spectrum(), inputs={"x": 10 * x}).failed == "scale 10"


def test_precision_ends_a_scale() -> None:
    """The weight 1.0003 is 1 in float16: the difference that it makes grows with the inputs."""
    model = model_of("g (float[N,2] x) => (float[N,1] y) { s = MatMul (x, w) y = Sigmoid (s) }",
                     {"w": np.array([[1.0003], [-1]], np.float32)})  # fmt: skip
    found = scales(model, inputs={"x": np.ones((1, 2), np.float32)})
    assert found.failed == "scale 1000" and str(found.difference).startswith("y[0, 0]: 0.57")


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_integers_behind_a_cast_hold_over_their_range(dtype: str) -> None:
    found = scales(spectrum(f"{dtype}[N,160] i", "x = Cast <to = 1> (i)"))
    assert found.held.startswith("whole ranges") and not found.failed
    assert found.held.endswith(", integers at the ends of their dtype")


def test_a_recognised_range_that_fails_is_refused() -> None:
    integers = spectrum("uint8[N,160] i", "x = Cast <to = 1> (i)")
    with pytest.raises(NotProved, match="beyond the largest float16"):
        onnxgrad.float16(integers, convert=["p"])
    image = model_of("g (float[N,3,4,4] x) => (float[N,2,4,4] y) { f = Conv (x, w) p = Mul (f, f) y = Sqrt (p) }",
                     {"w": np.full((2, 3, 1, 1), 30, np.float32)})  # fmt: skip
    with pytest.raises(NotProved, match="beyond the largest float16"):
        onnxgrad.float16(image, convert=["p"])
    assert scales(image).held == "whole ranges (images 0 to 255, integers up to 16 bits), scale 100"
    given = {"x": np.ones((1, 3, 4, 4), np.float32)}
    assert onnxgrad.float16(image, convert=["p"], inputs=given, report=True).proof.ok


def test_other_proofs_have_no_scales(tmp_path: Path) -> None:
    model = spectrum()
    assert verify(model, model, atol=1e-3).scales is None
    command = onnxgrad.optimize(model, passes=["float16"], report=True)
    assert command.proof.scales == scales(model)
