"""`float16 --keep auto`: the nodes that must stay are found, said why, with a bounded number of proofs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.jobs.float16_search import Float16Search
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.limits import LimitReached, limited
from onnxgrad.passes.float16 import Float16
from onnxgrad.rewrite.trace import Rewrite, Trace
from tests.helpers import MODELS_DIR
from tests.rewriting import model_of


class Model:
    """A converter of `count` bindings whose proof fails while more than `budget` of error is converted."""

    def __init__(self, count: int, errors: dict[int, float], budget: float = 1.0) -> None:
        self.count, self.errors, self.budget = count, errors, budget
        self.calls: list[int | None] = []

    def __call__(self, halving: Float16, conversions: int | None) -> Outcome:
        self.calls.append(conversions)
        stays = dict(halving.stay)
        left = [i for i in range(self.count) if f"v{i}" not in stays][:conversions]
        done = Outcome(trace=Trace())
        done.trace.rewrites = [
            Rewrite(n + 1, "float16", "in_float16", f"v{i}", (f"v{i}",)) for n, i in enumerate(left)
        ]
        if sum(self.errors.get(i, 0.0) for i in left) <= self.budget:
            return done
        report: Any = SimpleNamespace(worst=None, summary="DIFFERENT", verdict="different")
        raise RewriteRefuted(report, None, done=done)


def searched(model: Model, **options: Any) -> tuple[list[str], dict[str, Any]]:
    with limited(60):
        done = Float16Search(model, Float16(**options)).run()
    assert (
        done.search is not None
        and done.search["proofs"] == len(model.calls) <= done.search["limit"]
    )
    return [k["node"] for k in done.search["kept"]], dict(done.search)


def test_nothing_stays_where_the_proof_passes() -> None:
    assert searched(Model(100, {3: 0.5}))[0] == []


@pytest.mark.parametrize("bad", [[0], [99], [17], [0, 99], [5, 6, 7], [1, 30, 60, 90]])
def test_each_node_that_must_stay(bad: list[int]) -> None:
    model = Model(100, dict.fromkeys(bad, 2.0))
    kept, _ = searched(model)
    assert kept == [f"v{i}" for i in bad]
    assert len(model.calls) <= 1 + 8 * len(bad)  # log2(100) and one for each, which is little


def test_where_many_must_stay_the_rest_does_so_too() -> None:
    model = Model(64, dict.fromkeys(range(64), 0.1))  # ten of them pass, whichever these are
    kept, found = searched(model)
    assert kept[-1] == "v63" and len(kept) == 54
    assert "the search ended after" in found["kept"][-1]["reason"] and found["proofs"] <= 1 + 6 * 7


def test_what_cannot_pass_is_refuted() -> None:
    with limited(60), pytest.raises(RewriteRefuted):
        Float16Search(Model(300, dict.fromkeys(range(300), 2.0)), Float16()).run()


def test_a_deadline_ends_the_search_with_what_is_proved() -> None:
    """The longest proof of those that ran fits into the time that is left."""
    model = Model(100, dict.fromkeys((10, 40, 70), 2.0))
    search = Float16Search(model, Float16())
    with limited(60):
        search.run()
    model.calls.clear()
    slow = Float16Search(model, Float16())
    slow.longest = 25.0  # seconds: three of these are more than there are
    with limited(60), pytest.raises(RewriteRefuted):
        slow.run()
    assert len(model.calls) == 1


# 3001 is 3000 in float16, so that the difference of two large numbers is another one
CANCELS = """g (float[4,16] x) => (float[4,16] y) {
    a = MatMul (x, w)  b = Relu (a)  big = Add (b, large)  back = Sub (big, other)  c = Mul (back, half)  y = MatMul (c, w) }"""


def cancels() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((16, 16)) / 4).astype(np.float32)
    return model_of(
        CANCELS,
        {
            "w": w,
            "large": np.full(16, 3001, np.float32),
            "other": np.full(16, 3000, np.float32),
            "half": np.full(16, 0.5, np.float32),
        },
    )


@pytest.mark.slow
def test_a_model_that_plain_conversion_refuses() -> None:
    with pytest.raises(RewriteRefuted, match=r"keep=\['auto'\] searches"):
        onnxgrad.float16(cancels())
    done = onnxgrad.float16(cancels(), keep="auto", report=True)
    assert done.proof.verdict == "within bounds"
    why = {miss["where"].split(":")[0]: miss["reason"] for miss in done.to_dict()["declined"]}
    assert "the proof fails with it in float16: y[" in why["big"] and "a" not in why
    found = done.to_dict()["search"]
    assert [k["node"] for k in found["kept"]][:1] == ["big"] and found["proofs"] <= found["limit"]
    again = onnxgrad.float16(cancels(), keep=["auto"], report=True)
    assert again.model.SerializeToString() == done.model.SerializeToString()
    assert onnxgrad.verify(cancels(), done.model, metric="worst=0.02").ok


def test_named_nodes_stay_beside_it() -> None:
    done = onnxgrad.float16(cancels(), keep=["auto", "Mul"], report=True)
    reasons = {miss["reason"] for miss in done.to_dict()["declined"]}
    assert "it is to be kept (Mul)" in reasons


def test_it_needs_the_proof() -> None:
    with pytest.raises(InputError, match="searches by proofs"):
        onnxgrad.float16(cancels(), keep="auto", verify=False)


def test_a_time_limit_that_is_too_short_is_an_error_of_time() -> None:
    with pytest.raises(LimitReached):
        onnxgrad.float16(cancels(), keep="auto", timeout=0.01)


HEAD = """g (float[1,32] x) => (float[1,4] scores, int64[1,4] places, int64[1] best) {
    a = MatMul (x, w)  s = Sigmoid (a)  m = Mul (s, s)  scores, places = TopK (m, k)
    b = MatMul (x, w)  t = Tanh (b)  best = ArgMax <axis = 1, keepdims = 0> (t) }"""


def test_scores_of_choices_stay_and_products_go() -> None:
    w = np.random.default_rng(1).standard_normal((32, 20)).astype(np.float32)
    model = model_of(HEAD, {"w": w, "k": np.array([4])})
    done = onnxgrad.float16(model, keep="auto", report=True)
    why = {miss["where"].split(":")[0]: miss["reason"] for miss in done.to_dict()["declined"]}
    assert why["s"] == why["m"] == "TopK chooses by it" and why["t"] == "ArgMax chooses by it"
    assert "a" not in why and "b" not in why


CAUSAL = """g (float[B,6,8] x, int64[B,6] mask) => (float[B,6,8] y)
    <float one = {1}, float low = {-3.4028235e38}, int64[1] middle = {1}> {
    q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, t)
    m = Cast <to = 1> (mask) p = Sub (one, m) far = Mul (p, low) keys = Unsqueeze (far, middle)
    u = Add (s, keys) w = Add (u, causal) z = Softmax (w) y = MatMul (z, v) }"""


def test_rows_of_padding_that_see_nothing_are_excused_by_name() -> None:
    """Padding on the left of a causal attention sees no key: what it attends to is rounding."""
    rng = np.random.default_rng(0)
    constants = {
        n: (rng.standard_normal((8, 8)) / 2).astype(np.float32) for n in ("wq", "wk", "wv")
    }
    lowest = np.finfo(np.float32).min
    constants["causal"] = np.where(np.triu(np.ones((6, 6)), 1) > 0, lowest, 0).astype(np.float32)
    model = model_of(CAUSAL, constants)
    x = rng.standard_normal((2, 6, 8)).astype(np.float32)
    feeds = {"x": x, "mask": np.array([[1] * 6, [0, 0, 0, 1, 1, 1]])}
    with pytest.raises(RewriteRefuted):
        onnxgrad.float16(model, inputs=feeds)
    kept = onnxgrad.float16(model, inputs=feeds, keep="auto", report=True).to_dict()["search"]
    assert [k["node"] for k in kept["kept"]] == ["u"]
    done = onnxgrad.float16(model, inputs=feeds, keep="auto", excuse={"y": "mask"}, report=True)
    assert done.to_dict()["search"]["kept"] == [] and done.proof.verdict == "within bounds"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bound"), [("resnet18", 0.0005), ("yolox", 0.001), ("gpt2", 0.0005)]
)
def test_real_models_within_a_bound_that_plain_conversion_misses(name: str, bound: float) -> None:
    path, metric = MODELS_DIR / f"{name}.onnx", f"worst={bound}"
    with pytest.raises(RewriteRefuted):
        onnxgrad.float16(path, metric=metric)
    done = onnxgrad.float16(path, keep="auto", metric=metric, report=True)
    found = done.to_dict()["search"]
    assert (
        done.proof.verdict == "within bounds"
        and len(found["kept"]) > 0
        and found["proofs"] <= found["limit"]
    )
