"""onnxgrad/jobs/float16.py: which values are large in a run, and what float16 makes of that."""

from __future__ import annotations

import numpy as np
import onnx

import onnxgrad
from onnxgrad.jobs.float16 import values_beyond
from tests.rewriting import initializer, model_of

TEXT = """g (float[4] x) => (float[4] y) {
    a = Mul (x, w)  b = Mul (a, a)  c = Add (b, low)  r = Relu (b)  d = Mul (r, v)  y = Tanh (d) }"""
CONSTANTS = {
    "w": np.float32(1000), "v": np.full(4, 1e-7, np.float32), "low": np.float32(-3e38),
}  # fmt: skip
FEEDS = {"x": np.array([0, 0.5, 1, 2], np.float32)}


def model() -> onnx.ModelProto:
    return model_of(TEXT, CONSTANTS)


def test_what_passes_a_bound() -> None:
    assert values_beyond(model(), 65504, 1e8, {"inputs": FEEDS}) == ["b", "r"]
    assert values_beyond(model(), 65504, 1e8, {"inputs": {"x": 0 * FEEDS["x"]}}) == []


def test_what_does_not_run_tells_nothing() -> None:
    assert values_beyond(model(), 65504, 1e8, {"inputs": {"x": np.zeros(3, np.float32)}}) == []


def test_it_stays_in_float32() -> None:
    done = onnxgrad.float16(model(), inputs=FEEDS, report=True)
    assert done.proof.verdict == "within bounds"
    why = {where.split(":")[0]: reason for _, where, reason in done.near_misses}
    assert why["b"] == why["r"] == "its values passed 65504 in a run"
    assert why["d"] == "a value that it reads exceeded 65504 in a run" and "a" not in why
    assert initializer(done.model, "w").dtype == np.float16


def test_unseen_it_overflows_and_the_proof_says_so() -> None:
    half = onnxgrad.float16(model(), verify=False)
    assert not onnxgrad.verify(model(), half, inputs=FEEDS, metric="worst=0.02").ok
