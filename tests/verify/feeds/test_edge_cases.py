"""Feeds where models take another way: what is equal in general position and differs at zeros, ties and thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from onnxgrad.verify import feeds_for, verify
from onnxgrad.verify.feeds.edge_cases import SEARCH, SMALL, Edges, Variation, overridden, variants
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import jumps
from tests.helpers import parse

PAIRS = {
    # one data-dependent size taken for another: floats drawn at random have no zeros, so both are the number of elements
    "sizes": (
        "g (float[A] x, float[A] y) => (int64[1,K] o)",
        "n = NonZero(x) k = NonZero(y) s = Shape(k) o = Expand(n, s)",
        "o = NonZero(x)",
    ),
    "sizes-the-other-way": (
        "g (float[A] x, float[A] y, float[A] z) => (int64[1,K] o, float[A] p)",
        "n = NonZero(y) k = NonZero(x) s = Shape(k) e = Expand(n, s) o = Neg(e) p = Neg(z)",
        "n = NonZero(y) o = Neg(n) p = Neg(z)",
    ),
    "unique": (
        "g (float[A] x) => (int64[1] o)",
        "u = Unique(x) o = Shape(u)",
        "o = Shape(x)",
    ),
    "division": ("g (float[A] x) => (float[A] o)", "o = Div(x, x)", "z = Sub(x, x) o = Exp(z)"),
    "threshold": (
        "g (float[A] x) => (float[A] o) <float t = {0.75}>",
        "c = Greater(x, t) n = Neg(x) o = Where(c, x, n)",
        "c = GreaterOrEqual(x, t) n = Neg(x) o = Where(c, x, n)",
    ),
    "first-of-ties": (
        "g (float[A] x) => (int64 o)",
        "o = ArgMax <keepdims = 0> (x)",
        "o = ArgMax <keepdims = 0, select_last_index = 1> (x)",
    ),
    "sign-of-a-sum": (
        "g (float[A] x) => (float o) <float z = {0}>",
        "s = ReduceSum <keepdims = 0> (x) c = Greater(s, z) o = If(c) <then_branch = t () => (float p) { p = Exp(s) },"
        " else_branch = e () => (float q) { q = Neg(s) }>",
        "s = ReduceSum <keepdims = 0> (x) o = Exp(s)",
    ),
    "flag": (
        "g (float[A] x, bool c) => (float[A] o)",
        "o = If(c) <then_branch = t () => (float[A] p) { p = Exp(x) }, else_branch = e () => (float[A] q) { q = Neg(x) }>",
        "o = Neg(x)",
    ),
    "switch": (
        "g (int64 rate, float[A] x) => (float[A] o) <int64 known = {16000}>",
        "c = Equal(rate, known) n = Neg(x) o = Where(c, x, n)",
        "o = Identity(x)",
    ),
    "count": ("g (int64 n) => (int64[K] o) <int64 a = {0}, int64 b = {1}>", "o = Range(a, n, b)", "o = Range(a, b, b)"),
    "text": ("g (string[A] x) => (bool[A] o) <string[1] e = {\"\"}>", "o = Equal(x, e)", "q = Equal(x, x) o = Not(q)"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_only_there_is_refuted(name: str) -> None:
    head, a, b = PAIRS[name]
    one, two = parse(f"{head} {{ {a} }}"), parse(f"{head} {{ {b} }}")
    assert verify(one, one), str(verify(one, one))
    report = verify(one, two)
    assert report.verdict == "different" and any(case.edges for case in report.cases), str(report)


def test_usual_values_stay_in_general_position() -> None:
    """Differences near a kink say nothing, so that a check of gradients keeps these."""
    model = parse(
        "g (float[64] x, float[N] y) => (float[64] z) <float t = {0}> { c = Less(x, t) z = Where(c, x, x) }"
    )
    for seed in range(5):
        made = feeds_for(model, seed=seed)
        assert all((v != 0).all() and np.unique(v).size == v.size for v in made.values())


def test_each_input_has_another_number_of_zeros_and_repeats() -> None:
    model = parse(
        "g (float[8] a, float[8] b, int64[8] c, float16[8] d) => (float[8] z) { z = Add(a, b) }"
    )
    made: dict[str, Any] = feeds_for(model, seed=0, edges=Edges())
    zeros = [int((v == 0).sum()) for v in made.values()]
    assert zeros[0] != zeros[1] and min(zeros) >= 1
    assert all(np.unique(v[v != 0]).size < (v != 0).sum() for v in (made["a"], made["b"]))


def test_one_input_alone_keeps_one_element() -> None:
    model = parse("g (float[8] a, float[8] b) => (float[8] z) { z = Add(a, b) }")
    only = variants(["a", "b"])[2:]
    counts = [
        [np.count_nonzero(v) for v in feeds_for(model, seed=0, edges=e).values()] for e in only
    ]
    assert counts == [[1, 8], [8, 1]]


def test_bounds_hold_at_edges_too() -> None:
    model = parse(
        "g (int64[64] ids, float[64] p, float[1,3,4,4] image, int64[2,8] attention_mask) => (float[64] y, float[64] q, "
        "float[1,3,4,4] r, int64[2,8] m) <float[7] table = {1,2,3,4,5,6,7}> "
        "{ y = Gather(table, ids) q = Sqrt(p) r = Neg(image) m = Neg(attention_mask) }"
    )
    for edges in variants(["ids"]):
        made: dict[str, Any] = feeds_for(model, seed=1, edges=edges)
        assert made["ids"].min() >= 0 and made["ids"].max() <= 6
        assert (made["p"] > 0).sum() >= 32 and made[
            "p"
        ].min() >= 0  # 0 is where Sqrt has a vertical slope
        assert made["image"].min() >= 0 and made["image"].max() <= 1
        mask = made["attention_mask"]
        assert (mask.min(-1) == 0).all() and (mask.max(-1) == 1).all()
        assert (mask != feeds_for(model, seed=1)["attention_mask"]).all()  # the other way round


def test_an_edge_that_the_model_refuses_is_left_out() -> None:
    """One zero more and the reshape fails; then fewer things are moved, at last none."""
    model = parse(
        "g (float[8] x) => (float[2,4] y) <int64[2] s = {2, 4}> { n = NonZero(x) k = Squeeze(n) z = Gather(x, k) y = Reshape(z, s) }"
    )
    report = verify(model, model)
    assert report.ok and {case.edges for case in report.cases} == {False}


def test_a_small_model_that_jumps_is_run_on_more() -> None:
    """Few feeds tip a comparison; more of them are tried where that is cheap."""
    text = "g (float[8] x) => (int64[1,K] y) <float t = {2}> { c = %s(x, t) y = NonZero(c) }"

    def usual(a: str, b: str, **options: Any) -> int:
        """The cases that no missing coverage asked for."""
        return sum(not case.how for case in verify(parse(a), parse(b), **options).cases)

    assert usual(text % "Greater", text.replace("{2}", "{1.9}") % "Greater") == 2 + 2 * 5
    plain = "g (float[8] x) => (float[8] y) { y = Tanh(x) }"
    assert usual(plain, plain) == 2
    assert usual(text % "Less", text % "Less", seeds=[3]) == 2


@pytest.mark.parametrize("place", ["graph", "branch"])
def test_weights_count_wherever_they_lie(place: str) -> None:
    """What costs time stands in a branch as well as in the main graph."""
    model = parse("""g (bool p, float[8] x) => (float[8] y) {
        y = If(p) <then_branch = t () => (float[8] a) { z = ReduceSum(w) a = Mul(x, z) },
                   else_branch = e () => (float[8] b) { b = Neg(x) }> }""")
    at = model.graph if place == "graph" else model.graph.node[0].attribute[0].g
    at.initializer.append(numpy_helper.from_array(np.ones((1 << 17) + 1, np.float32), "w"))
    assert not jumps(model)
    at.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(8, np.float32), "w"))
    assert jumps(model)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_short_input_lies_at_its_threshold(length: int) -> None:
    """It has room for one mark: at the constant, where alone a change of it by a hair is seen."""
    text = f"g (float[{length}] x) => (bool[{length}] y) <float t = {{%s}}> {{ y = Greater(x, t) }}"
    report = verify(parse(text % "1.0"), parse(text % "0.9999922"), weights="rounded")
    assert report.verdict == "different"


def feed(text: str, how: Variation, name: str = "x") -> Any:
    feeder = Feeder(parse(text))
    return feeder.feeds(seed=0, how=how)[name], feeder.feeds(seed=0)[name]


@pytest.mark.parametrize("scale", [1e-3, 10.0, 100.0])
def test_floats_are_scaled(scale: float) -> None:
    varied, usual = feed("g (float[N,4] x) => (float[N,4] y) { y = Tanh(x) }", Variation(scale))
    np.testing.assert_allclose(varied, usual * np.float32(scale), rtol=1e-6)


def test_floats_with_bounds_are_not() -> None:
    varied, usual = feed("g (float[N,4] x) => (float[N,4] y) { y = Log(x) }", Variation(100.0))
    np.testing.assert_array_equal(varied, usual)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_sign(sign: int) -> None:
    varied, _ = feed("g (float[N,4] x) => (float[N,4] y) { y = Abs(x) }", Variation(sign=sign))
    assert (np.sign(varied) == sign).all()


@pytest.mark.parametrize("value", [0, 1])
def test_masks_and_counts(value: int) -> None:
    mask = "g (bool[N,4] m, float[N,4] x) => (float[N,4] y) { z = Neg(x) y = Where(m, x, z) }"
    varied, usual = feed(mask, Variation(mask=value), "m")
    assert (varied == value).all() and usual.any() and not usual.all()
    tile = "g (float[4] x, int64[1] n) => (float[K] y) { y = Tile(x, n) }"
    assert feed(tile, Variation(count=3 * value), "n")[0] == [3 * value]


@pytest.mark.parametrize(
    "default",
    [np.ones(3, np.float32), np.zeros((2, 2), np.float64), np.array([2, -1]), np.array(True),
     np.array(["a", "b"], object), np.array(7, np.uint8)],
)  # fmt: skip
def test_every_default_has_another_value(default: np.ndarray[Any, Any]) -> None:
    for other in overridden(default, 0):
        assert other.dtype == default.dtype and other.shape == default.shape
        assert not np.array_equal(other, default)


def test_each_says_what_it_does() -> None:
    texts = [str(how) for how in (SMALL, *SEARCH)]
    assert all(texts) and len(set(texts)) == len(texts)
    assert str(SMALL) == "scale 0.001"
