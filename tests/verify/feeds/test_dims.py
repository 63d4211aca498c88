"""Sizes for symbolic dimensions."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify import verify
from onnxgrad.verify.feeds.dims import dim_plans, evaluate, roles, shape_at
from tests.helpers import parse


def test_two_sizes_one_of_them_1() -> None:
    plans = dim_plans(parse("g (int64[batch, seq] x) => (int64[batch, seq] y) { y = Identity(x) }"))
    assert plans[0]["batch"] != plans[1]["batch"] and plans[0]["seq"] != plans[1]["seq"]
    assert plans[1] == {"batch": 1, "seq": 1}


def test_no_symbols_one_plan() -> None:
    assert dim_plans(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")) == [{}]


def test_anonymous_dimensions_have_names_of_their_own() -> None:
    model = parse("g (float[N, M] x, float[N, M] z) => (float[N, M] y) { y = Add(x, z) }")
    x, z = model.graph.input
    x.type.tensor_type.shape.dim[0].dim_value = -1
    x.type.tensor_type.shape.dim[1].ClearField("dim_param")
    z.type.tensor_type.shape.dim[0].dim_param = "?"
    assert set(dim_plans(model)[0]) == {"x.0", "x.1", "z.0", "M"}


def test_formulas_follow_their_symbols() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "2*past + new - 1"
    plan = dim_plans(model)[0]
    assert set(plan) == {"past", "new"}
    assert evaluate("2*past + new - 1", {"past": 3, "new": 4}) == 9
    assert evaluate("n // 2", {"n": 7}) == 3
    assert evaluate("n - 9", {"n": 7}) == 0
    with pytest.raises(InputError, match=r"dims=\{'q': size\}"):
        evaluate("q", {})


def test_roles() -> None:
    model = parse(
        """g (float[b, 3, h, w] image, int64[b, t] ids, float[2, n, 64] state, float[batch_size, seq_len] z)
             => (float[b, 3, h, w] y) { y = Neg(image) }"""
    )
    assert roles(model.graph) == {
        "b": "batch", "h": "spatial", "w": "spatial", "t": "length", "n": "batch", "batch_size": "batch",
        "seq_len": "length",
    }  # fmt: skip


def test_a_cache_adds_up() -> None:
    model = parse(
        """g (int64[batch, sequence_length] ids, int64[batch, total_sequence_length] mask,
             float[batch, 2, past_sequence_length, 4] past) => (int64[batch, N] y) {
             y = Identity(ids) }"""
    )
    for plan in dim_plans(model):
        assert (
            plan["total_sequence_length"] == plan["past_sequence_length"] + plan["sequence_length"]
        )


def test_sizes_that_models_want_are_tried() -> None:
    """Of pictures and patches, channels, powers of two, and a second of sound, each
    with a batch of 2 and of 1.
    """
    wanted = [2**n for n in (1, 2, *range(4, 11), 12)] + [3, 224, 320, 640, 1536, 16000]
    plans = dim_plans(parse("g (float[b, 3, h] x) => (float[b, 3, h] y) { y = Neg(x) }"))
    assert {(p["b"], p["h"]) for p in plans} >= {(b, n) for n in wanted for b in (1, 2)}


def test_fixed_by_the_user() -> None:
    model = parse("g (float[N, M] x) => (float[N, M] y) { y = Neg(x) }")
    assert all(plan["M"] == 37 for plan in dim_plans(model, {"M": 37}))
    with pytest.raises(InputError, match="no input has a dimension 'Q'"):
        dim_plans(model, {"Q": 1})
    with pytest.raises(InputError, match="negative"):
        dim_plans(model, {"M": -1})


def test_a_rank_is_chosen_for_an_input_without_a_shape() -> None:
    model = parse("g (float[] x, float z, float[N] a) => (float[] y) { y = Transpose(x) }")
    plans = dim_plans(model)
    assert [p["x.rank"] for p in plans[:2]] == [2, 3] and {p["x.rank"] for p in plans} >= {0, 1, 4}
    assert plans[0]["N"] != plans[1]["N"] and set(plans[0]) == {"N", "x.rank"}
    assert all(plan["x.rank"] == 7 for plan in dim_plans(model, {"x.rank": 7}))
    x = model.graph.input[0].type.tensor_type
    assert shape_at("x", x, {"x.rank": 3}) == [2, 3, 4] and not shape_at("x", x, {"x.rank": 0})
    with pytest.raises(InputError, match=r"no input has a dimension 'z.rank' .*: N, x.rank"):
        dim_plans(model, {"z.rank": 1})


def test_axes_of_an_input_without_a_shape_have_equal_sizes_if_those_run() -> None:
    model = parse("g (float[] q, float[] k) => (float[] y) { y = MatMul(q, k) }")
    plans = dim_plans(model)
    sides = {"q.0": 4, "q.1": 4, "k.0": 4, "k.1": 4}
    assert {"q.rank": 2, "k.rank": 2, **sides} in plans[2:6]
    assert not sides.keys() & plans[0].keys() and not sides.keys() & plans[1].keys()
    given = {"q.rank": 2, "k.rank": 2, "q.0": 6, "q.1": 5, "k.0": 5}
    assert all(given.items() <= plan.items() for plan in dim_plans(model, given))
    kinds = [v.type.tensor_type for v in model.graph.input]
    assert [shape_at(n, k, given) for n, k in zip("qk", kinds, strict=True)] == [[6, 5], [5, 3]]
    with pytest.raises(InputError, match=r"no input has a dimension 'z\.0'"):
        dim_plans(model, {"z.0": 1})
    for text in ("MatMul(q, k)", "Gemm(q, k)"):
        model.graph.node[0].CopyFrom(
            parse(f"g (float[] q, float[] k) => (float[] y) {{ y = {text} }}").graph.node[0]
        )
        assert {case.dims["q.rank"] for case in verify(model, model).cases} >= {2}


def test_initializers_that_are_inputs_ask_for_nothing() -> None:
    model = parse("g (float[N] x) => (float[N] y) <float[1] w = {1}> { y = Add(x, w) }")
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, ["K"]))
    assert set(dim_plans(model)[0]) == {"N"}
