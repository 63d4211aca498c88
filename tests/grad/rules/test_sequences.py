"""Sequences and optionals, against central differences of models that end in tensors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, normal
from tests.helpers import parse


def graph(body: str, out: str = "float[K,3] y", more: str = "") -> str:
    return f"g (float[2,3] a, float[4,3] b{more}) => ({out}) {{ {body} }}"


CASES = {
    "construct_and_concat": "s = SequenceConstruct (a, b) y = ConcatFromSequence <axis = 0> (s)",
    "at": "s = SequenceConstruct (a, b) i = Constant <value_int = 1> () t = SequenceAt (s, i) y = Sin (t)",
    "at_negative": "s = SequenceConstruct (a, b) i = Constant <value_int = -2> () t = SequenceAt (s, i) y = Sin (t)",
    "insert": (
        "s = SequenceConstruct (a) i = Constant <value_int = 0> () c = Sin (b) t = SequenceInsert (s, c, i) "
        "y = ConcatFromSequence <axis = 0> (t)"
    ),
    "insert_at_the_end": (
        "s = SequenceConstruct (a) c = Sin (b) t = SequenceInsert (s, c) y = ConcatFromSequence <axis = 0> (t)"
    ),
    "erase": (
        "c = Sin (a) s = SequenceConstruct (a, b, c) i = Constant <value_int = 1> () t = SequenceErase (s, i) "
        "y = ConcatFromSequence <axis = 0> (t)"
    ),
    "erase_the_last": "s = SequenceConstruct (a, b) t = SequenceErase (s) y = ConcatFromSequence <axis = 0> (t)",
    "split": (
        "p = Constant <value_ints = [1, 3]> () s = SplitToSequence <axis = 0> (b, p) i = Constant <value_int = 1> () "
        "t = SequenceAt (s, i) y = Sin (t)"
    ),
    "split_in_rows": (
        "s = SplitToSequence <axis = 0, keepdims = 0> (b) i = Constant <value_int = 2> () t = SequenceAt (s, i) "
        "y = Mul (a, t)"
    ),
    "split_in_unequal_parts": (
        "p = Constant <value_ints = [1, 3]> () s = SplitToSequence <axis = 0> (b, p) i = Constant <value_int = 0> () "
        "j = Constant <value_int = 1> () t = SequenceAt (s, i) u = SequenceAt (s, j) y = Mul (t, u)"
    ),
    "stack": (
        "c = Sin (a) s = SequenceConstruct (a, c) q = ConcatFromSequence <axis = 1, new_axis = 1> (s) "
        "r = Mul (q, q) k = Constant <value_ints = [1]> () y = ReduceSum <keepdims = 0> (r, k)"
    ),
    "two_readers": (
        "s = SequenceConstruct (a, b) i = Constant <value_int = 0> () t = SequenceAt (s, i) u = Sin (t) "
        "v = ConcatFromSequence <axis = 0> (s) y = Concat <axis = 0> (u, v)"
    ),
    "optional": "s = Optional (a) t = OptionalGetElement (s) y = Sin (t)",
    "map": (
        "s = SequenceConstruct (a, b) w = Sin (a) t = SequenceMap (s) <body = m (float[R,3] e) => (float[R,3] f) "
        "{ k = Constant <value_ints = [0]> () z = ReduceSum <keepdims = 1> (w, k) f = Mul (e, z) }> "
        "y = ConcatFromSequence <axis = 0> (t)"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sequences(name: str) -> None:
    check_model(parse(graph(CASES[name])), {"a": normal(2, 3), "b": normal(4, 3)})


def test_position_known_only_at_run_time() -> None:
    model = parse(
        graph("s = SequenceConstruct (a, b) t = SequenceAt (s, i) y = Sin (t)", more=", int64 i")
    )
    for i in (0, -1):
        check_model(model, {"a": normal(2, 3), "b": normal(4, 3), "i": np.array(i)})


SINE = "b = OptionalGetElement (o)  z = Sin (b)"
CAPTURED = {
    "If": f"""h = OptionalHasElement (o)
      y = If (h) <then_branch = t () => (float[3] z) {{ {SINE} }}, else_branch = e () => (float[3] c) {{ c = Neg (x) }}>""",
    "Loop": """n = Constant <value = int64 {3}> ()  k = Constant <value = bool {1}> ()
      y = Loop (n, k, x) <body = s (int64 i, bool c, float[3] a) => (bool d, float[3] z) {
        d = Identity (c)  b = OptionalGetElement (o)  m = Mul (a, b)  z = Sin (m) }>""",
    "Scan": """u = Concat <axis = 0> (row, row)
      y = Scan <num_scan_inputs = 1, body = s (float[3] a, float[3] r) => (float[3] z) {
        b = OptionalGetElement (o)  m = Mul (a, b)  z = Add (m, r) }> (x, u)""",
}


@pytest.mark.parametrize("operator", CAPTURED)
def test_an_optional_that_a_body_reads(operator: str) -> None:
    body = f"at = Constant <value_ints = [0]> ()  row = Unsqueeze (x, at)  o = Optional (x)  {CAPTURED[operator]}"
    model = parse(f"g (float[3] x) => (float[3] y) {{ {body} }}", opset=18)
    assert onnxgrad.check_gradient(model, "x", "y").ok
    feeds = {"x": np.array([0.3, -0.7, 1.1], np.float32), "y_grad": np.ones(3, np.float32)}
    found = onnxgrad.gradient(model, "x", "y")
    wanted = onnxgrad.run(found, inputs=feeds, evaluator="float64")["x_grad"]
    assert np.allclose(run(found, feeds)["x_grad"], wanted, atol=1e-5)


@pytest.mark.parametrize("there", [True, False])
def test_an_optional_that_is_absent_in_a_run(there: bool) -> None:
    model = parse(
        f"""g (float[3] x, bool p) => (float[3] y) {{
      o = If (p) <then_branch = a () => (optional(float[3]) q) {{ q = Optional (x) }},
                  else_branch = n () => (optional(float[3]) r) {{ r = Optional () }}>  {CAPTURED["If"]} }}""",
        opset=18,
    )
    (absent,) = (a.g for a in model.graph.node[0].attribute if a.name == "else_branch")
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [3])
    absent.node[0].attribute.append(onnx.helper.make_attribute("type", kind))
    feeds = {
        "x": np.array([0.3, -0.7, 1.1], np.float32),
        "p": np.array(there),
        "y_grad": np.ones(3, np.float32),
    }
    found = run(onnxgrad.gradient(model, "x", "y"), feeds)["x_grad"]
    assert np.allclose(found, np.cos(feeds["x"]) if there else -1, atol=1e-6)
