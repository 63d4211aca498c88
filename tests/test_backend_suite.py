from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import run
from tests import suite_table
from tests.backend_suite import MAX_IR, Case, clamp_ir, usable
from tests.helpers import parse


def f32(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def make_case(outputs: list[Any], rtol: float = 1e-3) -> Case:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    return Case("t", "node", model, {"x": np.array([-1, 2], np.float32)}, outputs, rtol, 1e-7)


def test_every_case_is_complete_and_named_once() -> None:
    cases = list(usable())
    assert len({c.name for c in cases}) == len(cases)
    for c in cases:
        graph = c.model.graph
        weights = {w.name for w in graph.initializer} | {
            w.values.name for w in graph.sparse_initializer
        }
        optional = {i.name for i in graph.input if i.type.HasField("optional_type")}
        assert {i.name for i in graph.input} - weights - optional <= set(c.inputs), c.name
        assert len(c.outputs) == len(graph.output), c.name
    if onnx.__version__ == suite_table.table()["onnx"]:
        assert len(cases) == suite_table.table()["cases"] == 2033


def test_clamp_ir_copies() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", ir_version=14)
    assert (clamp_ir(model).ir_version, model.ir_version) == (MAX_IR, 14)
    assert clamp_ir(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")).ir_version == 10


def test_the_table_speaks_of_known_cases_and_is_nested() -> None:
    table = suite_table.table()
    shipped, clamped = set(table["right_as_shipped"]), set(table["right_clamped"])
    moving, reference_only = (
        set(table["single_node_moving"]),
        set(table["single_node_moving_reference_only"]),
    )
    assert moving < clamped and not reference_only & clamped
    # Clamping is meant to win cases, never to lose one.
    assert shipped <= clamped
    if onnx.__version__ == table["onnx"]:
        assert clamped | reference_only <= {c.name for c in usable()}


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("test_tanh", True),
        ("test_conv_with_autopad_same", True),
        ("test_round", False),  # flat almost everywhere
        ("test_shape", False),  # no float output
        ("test_sequence_model1", False),  # no float tensor input
        ("test_layer_normalization_2d_axis0_expanded", False),  # many nodes
    ],
)
def test_choice_of_moving_cases(name: str, chosen: bool) -> None:
    assert (name in {c.name for c in suite_table.single_node_moving()}) is chosen


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        (f32(1, 2), f32(1, 2.001), True),
        (f32(1, 2), f32(1, 2.01), False),
        (f32(1, 2), np.array([1, 2], np.float64), False),
        (f32([1, 2]), f32(1, 2), False),
        (f32(np.nan, np.inf), f32(np.nan, np.inf), True),
        (f32(np.nan), f32(0), False),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array(["a"], object), np.array(["b"], object), False),
        (np.array([True]), np.array([False]), False),
        (np.array([1, 2], ml_dtypes.int4), np.array([1, 2], ml_dtypes.int4), True),
        (np.array([1, 2], ml_dtypes.int4), np.array([1, 3], ml_dtypes.int4), False),
        (np.array([1], ml_dtypes.bfloat16), np.array([1.0078125], ml_dtypes.bfloat16), True),
        (np.array([1], ml_dtypes.bfloat16), np.array([1.5], ml_dtypes.bfloat16), False),
        ([f32(1)], [f32(1)], True),
        ([f32(1)], [f32(1), f32(1)], False),
        (None, None, True),
        (f32(1), None, False),
        (None, f32(1), False),
    ],
)
def test_matches(got: Any, want: Any, same: bool) -> None:
    assert suite_table.matches(make_case([want]), [got]) is same


def test_is_right_runs_onnxruntime_and_survives_a_crash() -> None:
    right = make_case([np.array([0, 2], np.float32)])
    assert suite_table.is_right(right)
    assert not suite_table.is_right(
        dataclasses.replace(right, outputs=[np.array([0, 3], np.float32)])
    )
    # onnxruntime 1.31 dies of SIGFPE while it folds this.
    crash = parse(
        """g (int64[1] x) => (int64[1] y) {
             a = Constant<value_ints = [-9223372036854775808]>()
             b = Constant<value_ints = [-1]>()
             c = Div(a, b)
             y = Add(x, c)
           }"""
    )
    one = np.array([1], np.int64)
    assert not suite_table.is_right(Case("crash", "node", crash, {"x": one}, [one]))
    assert suite_table.is_right(right), "the next case must not suffer"


def test_any_opset_reaches_the_child_and_is_undone() -> None:
    """By the reason why an opset that nobody released is refused: no operator is there, or any at all."""
    unreleased = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=1000)
    with suite_table.any_opset(), pytest.raises(RunFailed, match="No Op registered"):
        run(unreleased, {"x": f32(-1, 2)})
    with pytest.raises(RunFailed, match="guarantees"):
        run(unreleased, {"x": f32(-1, 2)})


@pytest.mark.slow
def test_the_table_is_what_is_measured_now() -> None:
    kept, now = suite_table.table(), suite_table.measure()
    versions = ("onnx", "onnxruntime")
    if [kept[v] for v in versions] != [now[v] for v in versions]:
        pytest.skip(
            f"the table is for {[kept[v] for v in versions]}, installed are {[now[v] for v in versions]}"
        )
    assert now["cases"] == kept["cases"]
    for key in (
        "right_as_shipped",
        "right_clamped",
        "single_node_moving",
        "single_node_moving_reference_only",
    ):
        assert set(now[key]) ^ set(kept[key]) == set(), key
