"""onnxgrad/jobs/float16.py: which values are large in a run, and what float16 makes of that."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import NotProved
from onnxgrad.jobs.declarations import Float16Options
from onnxgrad.jobs.float16 import float16, values_beyond
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.verify import run
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


IDS = """g (float[N,6] x) => (float[N,6,2] y) {
    r = Floor(x) i = Cast<to = 6>(r) e = Gather(table, i) y = MatMul(e, w)
}"""


def of_ids() -> onnx.ModelProto:
    rng = np.random.default_rng(2)
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {IDS}')
    for name, shape in (("table", (5000, 4)), ("w", (4, 2))):
        array = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


@pytest.mark.parametrize("io", [False, True])
def test_indices_stay_float32(io: bool) -> None:
    # float16 has no odd number beyond 2048
    ids = np.float32([[3, 100, 2049, 2051, 4095, 4903]])
    half = onnxgrad.float16(of_ids(), io=io)
    ops = [n.op_type for n in half.graph.node]
    assert ops[:3] == ["Floor", "Cast", "Gather"], "no Cast to float16 before the indices"
    a, b = (run(m, {"x": ids})["y"] for m in (of_ids(), half))
    assert np.abs(a - b).max() < 1e-2


def test_a_value_that_others_read_as_well_is_converted() -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y, int32[4] z) {
        t = Tanh(x) a = Sqrt(t) y = Neg(a) z = Cast<to = 6>(a) }"""
    )
    half = onnxgrad.float16(made, verify=False)
    assert [n.op_type for n in half.graph.node][:2] == ["Cast", "Tanh"]


def test_keep_auto_that_converts_nothing_says_so() -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {
        axis = Constant<value_int = 0>() y = CumSum(x, axis) }"""
    )
    with pytest.raises(NotProved, match="every node in float32"):
        onnxgrad.float16(made, keep="auto")


def test_optimize_with_the_pass_accepts_what_float16_accepts() -> None:
    w = onnx.numpy_helper.from_array(
        np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), "w"
    )
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[N,4] x) => (float[N,4] y) {
        a = MatMul(x, w) y = Tanh(a) }"""
    )
    made.graph.initializer.append(w)
    assert onnxgrad.optimize(made, passes=["float16"]) == onnxgrad.float16(made)


def test_a_weight_that_is_an_input_is_said() -> None:
    made = of_ids()
    made.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, (4, 2)))
    outcome = Outcome()
    float16(made, Float16Options(), outcome=outcome)
    assert any(note.startswith("w: this weight is also an input") for note in outcome.trace.notes)
