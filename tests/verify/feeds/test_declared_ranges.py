"""Declared ranges: every run of a proof keeps them, and commands keep the declaration."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.verify.feeds.edge_cases import FULL, SEARCH, SMALL, Edges, Variation
from onnxgrad.verify.feeds.generate import Feeder, feeds_for
from tests.helpers import parse

FAR = [
    *SEARCH, SMALL, FULL, *(Variation(wide=level) for level in (1, 2, 3)),
    Variation(non_finite=True), Variation(reach=1e6), Variation(reach=float("inf")),
]  # fmt: skip


def with_range(model: onnx.ModelProto, **ranges: Any) -> onnx.ModelProto:
    return onnxgrad.set_metadata(model, ranges=ranges)


def model_of(dtype: str, shape: str, name: str = "x") -> onnx.ModelProto:
    """A model with thresholds beyond the range, and a sum that large values overflow in float16."""
    return parse(
        f"g ({dtype}[{shape}] {name}) => (float[{shape}] y) <float k = {{50}}> "
        f"{{ c = Cast <to = 1> ({name}) l = Less (c, k) s = Mul (c, c) y = Where (l, s, c) }}"
    )


@pytest.mark.parametrize("shape", ["N", "1", "2,3,4,4", "N,8"])
@pytest.mark.parametrize("name", ["x", "mask", "lengths", "timestep", "position_ids"])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("float", -0.25, 0.5), ("float", 2, 3), ("float16", -8, -1), ("int64", 3, 9), ("int8", -5, -2), ("uint8", 7, 7)],
)  # fmt: skip
def test_no_case_leaves_the_range(
    dtype: str, low: float, high: float, name: str, shape: str
) -> None:
    model = with_range(model_of(dtype, shape, name), **{name: (low, high)})
    feeder = Feeder(model)
    made = [
        feeds_for(model, seed=s, edges=e)
        for s in (0, 1)
        for e in (None, Edges(), Edges(sizes=True))
    ]
    made += [feeder.feeds(seed=2, how=how) for how in FAR]
    made += [feeder.varied(made[0], {}, how) for how in FAR]
    values = np.concatenate([np.asarray(f[name], np.float64).ravel() for f in made])
    assert values.size and np.isfinite(values).all()
    assert low <= values.min() and values.max() <= high
    assert low == high or shape == "1" or values.max() > values.min()


def test_a_proof_sees_only_the_range_and_says_so() -> None:
    wrong = parse(
        "g (float[N] x) => (float[N] y) <float k = {50}> { m = Neg (k) y = Clip (x, m, k) }"
    )
    right = parse("g (float[N] x) => (float[N] y) { y = Identity (x) }")
    assert not onnxgrad.verify(right, wrong).ok, "values far out differ"
    report = onnxgrad.verify(with_range(right, x=(-3, 3)), wrong)
    assert report.ok and "inputs lie in the ranges that the model declares: x -3..3" in report.notes
    assert not onnxgrad.verify(with_range(right, x=(-3, 60)), wrong).ok


def test_the_range_decides_what_becomes_float16() -> None:
    text = "g (float[N,16] x) => (float[N,16] y) <float k = {20}> { a = Mul (x, x) y = Mul (a, k) }"

    def kept(high: float) -> int:
        done = onnxgrad.float16(with_range(parse(text), x=(0, high)), report=True)
        return len(done.near_misses)

    assert kept(40) == 0, "20 * 40 * 40 fits"
    assert kept(650) == 2


@pytest.mark.parametrize(
    "changed",
    [
        lambda m: onnxgrad.optimize(m),
        lambda m: onnxgrad.edit(m, rename={"x": "z", "y": "x"}),
        lambda m: onnxgrad.convert_opset(m, 21),
        lambda m: onnxgrad.float16(m, verify=True),
        lambda m: onnxgrad.extract(m, outputs="t"),
        lambda m: onnxgrad.gradient(m, "x", "y"),
        lambda m: onnxgrad.join(m, parse("g (float[N] q) => (float[N] r) { r = Neg (q) }"), map={"y": "q"}),
        lambda m: onnxgrad.set_metadata(m, ranges={"w": None}),
    ],
    ids=["optimize", "edit", "convert-opset", "float16", "extract", "gradient", "join", "removed"],
)  # fmt: skip
def test_commands_keep_the_declaration(changed: Any) -> None:
    model = parse(
        "g (float[N] x, float[N] w) => (float[N] y, float[N] t) { t = Tanh (x) y = Mul (t, w) }"
    )
    made = changed(with_range(model, x=(-2, 0.1), w=(1, 1)))
    found = {tuple(e.value for e in v.metadata_props) for v in made.graph.input if v.name != "q"}
    assert ("-2..0.1",) in found or any(v.name == "w" for v in made.graph.input)
    for value in made.graph.input:
        if value.name in ("x", "z"):
            assert [e.value for e in value.metadata_props] == ["-2..0.1"]


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"z": (0, 1)}, "no such input"),
        ({"b": (0, 1)}, "no real numbers"),
        ({"x": (1, 0)}, "LOW <= HIGH"),
        ({"x": (float("nan"), 1)}, "must be text or a list"),
        ({"x": "1"}, "write LOW..HIGH"),
        ({"x": 1}, "must be text or a list"),
        ("x", "must be a table"),
    ],
)
def test_what_is_no_range_is_refused(ranges: Any, words: str) -> None:
    model = parse("g (float[N] x, bool b) => (float[N] y) { y = Tanh (x) }")
    with pytest.raises(InputError, match=words):
        onnxgrad.set_metadata(model, ranges=ranges)


def test_a_range_beyond_what_operators_accept_is_refused() -> None:
    model = parse("g (int64[N] i) => (float[N] y) <float[3] t = {1, 2, 3}> { y = Gather (t, i) }")
    with pytest.raises(
        InputError, match=r"range of 'i': it declares 7 to 9, but its operators accept"
    ):
        onnxgrad.verify(with_range(model, i=(7, 9)), model)
    onnxgrad.verify(with_range(model, i=(2, 9)), model)


def test_everything_else_stays() -> None:
    model = model_of("float", "N")
    made = with_range(model, x=(0, 1))
    assert onnxgrad.set_metadata(made, ranges={"x": "none"}) == model
