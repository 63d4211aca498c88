"""The presets: what each promises and why its passes stand where they do; for training every weight as it was."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.passes.presets import DESCRIBED, PRESETS
from tests.helpers import MODELS_DIR, parse
from tests.rewriting import Done, apply, model_of, weights

PASSES = ",".join(PRESETS["training-safe"])
MODELS = sorted((MODELS_DIR / "training").glob("*.onnx")) + sorted(MODELS_DIR.glob("*.onnx"))
LARGEST = ("unet", "llama.raw")  # of those not for training; a second each


def weight_bytes(model: ModelProto) -> dict[str, tuple[tuple[int, ...], bytes]]:
    floats = (t for t in model.graph.initializer if t.data_type in FLOAT_DTYPES)
    return {t.name: (tuple(t.dims), numpy_helper.to_array(t).tobytes()) for t in floats}


def operators(model: ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            p,
            id=f"{p.parent.name}_{p.stem}",
            marks=[pytest.mark.slow] * (p.parent == MODELS_DIR and p.stem in LARGEST),
        )
        for p in MODELS
    ],
)
def test_weights_are_the_same_set_with_the_same_bytes(path: Path) -> None:
    model = onnx.load(path)
    after = apply(model, PASSES).after
    assert weight_bytes(after) == weight_bytes(model) != {}
    for op in ("BatchNormalization", "Dropout", "Conv", "Gemm", "MatMul"):
        assert operators(after)[op] == operators(model)[op]


BLOCK = """g (float[2,4] x) => (float[2,3] y, float[2,3] z) <float ratio = {0.5}, bool t = {1}>
  { v = Transpose(w)  a = MatMul(x, v)  b = MatMul(x, u)  c = Add(a, p)  d = Add(b, q)
    n = BatchNormalization(c, gamma, beta, mean, var)  y = Dropout(n, ratio, t)  z = Mul(d, s) }"""
SIZES = {
    "w": (3, 4),
    "u": (4, 3),
    "p": (3,),
    "q": (3,),
    "gamma": (3,),
    "beta": (3,),
    "mean": (3,),
    "var": (3,),
    "s": (3,),
}


def block() -> ModelProto:
    given = model_of(BLOCK, weights(SIZES, positive="var"))
    for t in given.graph.initializer:
        if t.name in ("p", "q", "beta", "mean"):  # as layers are initialised
            t.CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), t.name))
    return given


def changed(done: Done) -> set[str]:
    return {
        name
        for name, w in weight_bytes(done.before).items()
        if weight_bytes(done.after).get(name) != w
    }


def test_what_other_presets_do_to_weights_is_left_undone() -> None:
    kept = apply(block(), PASSES)
    assert not changed(kept) and weight_bytes(kept.after).keys() == weight_bytes(kept.before).keys()
    assert kept.counts == Counter(operators(kept.before))
    # all of these go in the canonical form: folded, merged with an equal one, concatenated
    assert {"w", "u", "p", "q", "mean"} & changed(
        apply(block(), ",".join(PRESETS["canonical"]))
    ) >= {"w", "p", "q"}


def test_shapes_are_folded_and_equal_constants_of_integers_merged() -> None:
    text = """g (float[2,4] x) => (float[8] y, float[8] z) <int64[1] m = {1}, int64[1] n = {-1}, int64[1] o = {-1}, float[8] p = {0,0,0,0,0,0,0,0},
      float[8] q = {0,0,0,0,0,0,0,0}> { k = Neg(m)  a = Reshape(x, k)  b = Reshape(x, n)  c = Reshape(x, o)  d = Add(b, c)  y = Add(a, p)  z = Mul(d, q) }"""
    done = apply(parse(text), PASSES)
    assert (
        done.counts["Neg"] == 0
        and done.counts["Reshape"] == 2
        and {"p", "q"} <= set(done.program.main.initializers)
    )
    done.prove()


def test_the_options_by_themselves() -> None:
    assert "p" in apply(block(), "merge-equal{floats=false}").program.main.initializers
    assert len({"p", "q"} & set(apply(block(), "merge-equal").program.main.initializers)) == 1
    assert apply(block(), "fold-constant{floats=false}").counts["Transpose"] == 1
    assert apply(block(), "fold-constant").counts["Transpose"] == 0


def test_the_preset_runs_no_pass_that_makes_weights() -> None:
    names = {p.name for p in Pipeline.of("training-safe").passes}
    assert not {
        n for n in names if "combine" in n or "scale" in n or "bias" in n or "inference" in n
    }


# ---- all of them ---------------------------------------------------------------------------------------------------

# a scale behind a Conv, three products of one input, a BatchNormalization, and what nobody needs
MIXED = """g (float[2,3,4,4] x) => (float[2,5,4,4] y, float[2,3,4,5] a, float[2,3,4,5] b) {
    same = Identity (x)  c = Conv (same, w)  n = BatchNormalization (c, gamma, beta, mean, var)  y = Relu (n)
    unread = Exp (c)  a = MatMul (x, u)  b = MatMul (same, v) }"""
SHAPES = {"w": (5, 3, 1, 1), "u": (4, 5), "v": (4, 5)} | dict.fromkeys(
    ["gamma", "beta", "mean", "var"], (5,)
)


@pytest.mark.parametrize(
    ("preset", "left"),
    [
        ("clean", {"Conv": 1, "BatchNormalization": 1, "Relu": 1, "MatMul": 2}),
        ("training-safe", {"Conv": 1, "BatchNormalization": 1, "Relu": 1, "MatMul": 2}),
        ("inference", {"Conv": 1, "Relu": 1, "MatMul": 2}),
        ("default", {"Conv": 1, "Relu": 1, "MatMul": 2}),
        ("canonical", {"Conv": 1, "Relu": 1, "MatMul": 1, "Split": 1}),
    ],
)
def test_what_each_preset_promises(preset: str, left: dict[str, int]) -> None:
    done = apply(
        model_of(MIXED, weights(SHAPES, positive="var")), ",".join(PRESETS[preset]), merge="auto"
    )
    assert done.counts == left
    done.prove()


@pytest.mark.parametrize("preset", DESCRIBED)
def test_every_position_has_its_reason(preset: str) -> None:
    """A pass by its name and options, and why it stands there, in words of its own."""
    described = DESCRIBED[preset]
    assert PRESETS[preset] == tuple(step.item for step in described.steps)
    parsed = Pipeline.of(preset).passes
    assert [p.name for p in parsed] == [step.item.partition("{")[0] for step in described.steps]
    reasons = [step.why for step in described.steps]
    assert all(len(why.split()) >= 3 and not why.endswith(".") for why in (*reasons, described.why))
    assert len(set(reasons)) == len(reasons)


def position(preset: str, name: str) -> int:
    return [item.partition("{")[0] for item in PRESETS[preset]].index(name)


@pytest.mark.parametrize("preset", DESCRIBED)
def test_the_order_that_the_reasons_speak_of(preset: str) -> None:
    assert position(preset, "remove-unused") == 0
    order = [
        "remove-noops",
        "fold-constant",
        "open-if",
        "merge-equal",
        "merge-consecutive",
        "simplify-inference",
    ]
    order += [
        "backward-fold-scale-axis",
        "forward-fold-scale-axis",
        "fold-bias",
        "simplify-transpose",
    ]
    order += ["combine-parallel-matmul", "transpose-after-concat"]
    there = [
        name for name in order if any(item.partition("{")[0] == name for item in PRESETS[preset])
    ]
    assert [position(preset, name) for name in there] == sorted(
        position(preset, name) for name in there
    )


def test_costs_are_asked_about_in_default_and_nowhere_in_canonical() -> None:
    parallel = {p: [item for item in PRESETS[p] if "combine-parallel" in item] for p in PRESETS}
    assert (
        all("merge=always" in item for item in parallel["canonical"])
        and len(parallel["canonical"]) == 3
    )
    assert (
        not any("merge" in item for item in parallel["default"]) and len(parallel["default"]) == 3
    )
    assert not parallel["clean"] and not parallel["inference"] and not parallel["training-safe"]
