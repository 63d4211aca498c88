"""Loss scaling by GradScaler's rule, and a whole float16 update with a gradient that overflows, graph against arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.train import array_math
from onnxgrad.train.optimizers import SGD, Adafactor, AdamW, Moment, NAdam, Optimizer
from onnxgrad.train.update.clipping import element_type
from onnxgrad.train.update.mixed_precision import LossScaling, Master, all_finite, kept
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.train.emitted import computed
from tests.train.optimizers.problem import START, by_graph

# whether each step's gradients are finite, and (scale, growth_tracker) of GradScaler(8, 2, 0.5, 3) afterwards
FINITE = [True, True, False, True, True, True, True, True, True, True, False, False]
RECORDED = [
    (8, 1), (8, 2), (4, 0), (4, 1), (4, 2), (8, 0), (8, 1), (8, 2), (16, 0), (16, 1), (8, 0), (4, 0),
]  # fmt: skip
SCALING = LossScaling(8.0, 2.0, 0.5, 3)


def scaling_by_graph(s: Any, finite: bool) -> Any:
    def formula(v: dict[str, Any]) -> dict[str, Any]:
        return SCALING.update({name: v[name] for name in s}, v["finite"])

    return computed(formula, {**s, "finite": finite})


def scaling_by_arrays(s: Any, finite: bool) -> Any:
    return SCALING.update(s, np.bool_(finite), array_math)


@pytest.mark.parametrize("way", [scaling_by_arrays, scaling_by_graph])
def test_the_rule_is_that_of_grad_scaler(way: Any) -> None:
    s: Any = SCALING.state()
    before = {k: (v.dtype, v.shape) for k, v in s.items()}
    for finite, expected in zip(FINITE, RECORDED, strict=True):
        s = way(s, finite)
        assert (float(s["scale"]), int(s["growth_tracker"])) == expected
        assert {k: (v.dtype, v.shape) for k, v in s.items()} == before
    assert int(s["skipped"]) == FINITE.count(False)


@pytest.mark.parametrize("way", [scaling_by_arrays, scaling_by_graph])
def test_a_scale_does_not_grow_to_inf(way: Any) -> None:
    s = {
        "scale": np.array(2.0**127, np.float32),
        "growth_tracker": np.array(2),
        "skipped": np.array(0),
    }
    with np.errstate(over="ignore"):
        found = way(s, True)
    assert (found["scale"], found["growth_tracker"]) == (2.0**127, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("bad", "expected"), [(None, True), (np.inf, False), (-np.inf, False), (np.nan, False)]
)
def test_all_finite(dtype: Any, bad: float | None, expected: bool) -> None:
    a, b = np.full((50, 40), np.finfo(dtype).max, dtype), np.array(-1, dtype)
    if bad is not None:
        a[17, 23] = bad
    graph = computed(lambda v: {"y": all_finite([v["a"], v["b"]])}, {"a": a, "b": b})["y"]
    with np.errstate(all="ignore"):
        assert bool(graph) is bool(all_finite([a, b], array_math)) is expected
        assert bool(all_finite([b, a, b], array_math)) is expected


def update(v: Any, math: Any, moment: Any) -> dict[str, Any]:
    """The steps 2 to 5 of the module's description, of one float16 parameter."""
    s = {k: v[k] for k in SCALING.state()}
    (g,) = SCALING.unscaled([v["g"]], s, math)
    finite, rule = all_finite([g], math), Master(AdamW())
    held = {k: v[k] for k in ("master", "exp_avg", "exp_avg_sq")}
    new, states = rule.update(v["p"], g, held, moment(v["step"] - s["skipped"]))
    after = {k: kept(finite, states[k], held[k], math) for k in held}
    return {"p": kept(finite, new, v["p"], math), **after, **SCALING.update(s, finite, math)}


def test_an_overflow_updates_nothing_and_counts_for_nothing() -> None:
    p = np.float16([1, -2])
    start: Any = {"p": p, **Master(AdamW()).state(p), **SCALING.state()}
    gradients = [[8, -4], [np.inf, 1], [4, 2], [np.nan, 0], [2, 2]]

    def moment_of_graph(v: Any) -> Any:
        return lambda t: Moment(v["rate"], op.Cast(t, to=11), op, v["p"].dtype)

    def moment_of_arrays(t: Any) -> Moment:
        return Moment(np.float32(0.1), np.float64(t), array_math, element_type(p))

    graph, arrays, alone, step = (
        start,
        start,
        (p.astype(np.float32), AdamW().state(p.astype(np.float32))),
        0,
    )
    for number, g in enumerate(gradients, 1):
        feeds = {"g": np.float16(g), "step": np.array(number), "rate": np.float32(0.1)}
        before, scale = graph, float(graph["scale"])
        graph = computed(lambda v: update(v, op, moment_of_graph(v)), {**graph, **feeds})
        with np.errstate(all="ignore"):
            arrays = update({**arrays, **feeds}, array_math, moment_of_arrays)
        for name in start:
            np.testing.assert_allclose(graph[name], arrays[name], rtol=1e-6, err_msg=name)
        if np.isfinite(g).all():
            step += 1
            alone = AdamW().apply(
                alone[0], np.float32(g) / np.float32(scale), alone[1], step=step, rate=0.1
            )
            np.testing.assert_allclose(graph["master"], alone[0], rtol=1e-6)
        else:
            assert all(
                np.array_equal(graph[k], before[k])
                for k in ("p", "master", "exp_avg", "exp_avg_sq")
            )
            assert graph["scale"] == scale / 2
    assert (int(graph["skipped"]), graph["p"].dtype) == (2, np.float16)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_scaled_loss(dtype: Any) -> None:
    s = LossScaling().state()
    found = computed(
        lambda v: {"y": LossScaling().scaled(v["loss"], {"scale": v["scale"]})},
        {"loss": np.array(2, dtype), "scale": s["scale"]},
    )["y"]
    assert found == 131072 and found.dtype == (np.float64 if dtype == np.float64 else np.float32)
    assert LossScaling().scaled(np.array(2, dtype), s, array_math) == found


@pytest.mark.parametrize(
    "options",
    [
        {"init_scale": 0.0},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
        {"init_scale": "much"},
        {"growth_interval": None},
    ],
)
def test_numbers_that_make_no_scaling(options: Any) -> None:
    with pytest.raises(InputError, match="loss scaling: "):
        LossScaling(**options)


def test_a_scale_may_be_below_1() -> None:
    assert LossScaling(0.5).state()["scale"] == 0.5


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_the_record_is_what_pytorch_computes() -> None:
    import torch

    scaler = torch.amp.GradScaler("cpu", 8.0, 2.0, 0.5, 3)
    p = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1)
    for finite, (scale, tracker) in zip(FINITE, RECORDED, strict=True):
        optimizer.zero_grad()
        scaler.scale((p * (1.0 if finite else float("inf"))).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert (scaler.get_scale(), scaler._get_growth_tracker()) == (scale, tracker)


P = np.linspace(-2, 2, 6).reshape(2, 3).astype(np.float16)
G = np.linspace(0.5, -0.25, 6).reshape(2, 3).astype(np.float16)


@pytest.mark.parametrize("inner", [SGD(momentum=0.9), AdamW(), NAdam(), Adafactor()])
@pytest.mark.parametrize("unscaled", [np.float16, np.float32])
def test_updates_are_those_of_float32(inner: Optimizer, unscaled: type) -> None:
    master, state = P.astype(np.float32), inner.state(P.astype(np.float32))
    narrow, held = P, Master(inner).state(P)
    for step in range(1, 6):
        master, state = inner.apply(master, G.astype(np.float32), state, step=step, rate=1e-5)
        narrow, held = Master(inner).apply(narrow, G.astype(unscaled), held, step=step, rate=1e-5)
        assert narrow.dtype == np.float16 and {v.dtype for v in held.values()} == {
            np.dtype(np.float32)
        }
        np.testing.assert_array_equal(held["master"], master)
        np.testing.assert_array_equal(narrow, master.astype(np.float16))


def test_small_updates_add_up() -> None:
    p, held = np.float16([1.0]), Master(SGD()).state(np.float16([1.0]))
    alone = p
    for step in range(1, 101):
        p, held = Master(SGD()).apply(p, np.float16([1.0]), held, step=step, rate=1e-4)
        alone, _ = SGD().apply(alone, np.float16([1.0]), {}, step=step, rate=1e-4)
    np.testing.assert_allclose(p, 0.99, rtol=1e-3)
    assert alone == 1.0


def test_the_same_in_a_graph() -> None:
    program = load(
        parse(
            "g (float16[2, 3] p, float16[2, 3] g, float[2, 3] m, float r) => (float16[2, 3] q) { q = Identity (p) }"
        )
    )
    p, g, m, r = program.main.inputs
    with emitting(program.main, share=True):
        at = Moment(r, op.Cast(1.0, to=TensorProto.DOUBLE), op, p.dtype)
        new, kept = Master(SGD()).update(p, g, {"master": m}, at)
    program.main.add_output(new)
    program.main.add_output(kept["master"])
    found = run(
        to_proto(program), {"p": P, "g": G, "m": P.astype(np.float32), "r": np.float32(1e-5)}
    )
    expected, state = Master(SGD()).apply(P, G, Master(SGD()).state(P), step=1, rate=1e-5)
    np.testing.assert_array_equal(found[new.name], expected)
    np.testing.assert_array_equal(found[kept["master"].name], state["master"])


def test_it_is_what_it_holds() -> None:
    master = Master(AdamW(lr=0.5, maximize=True))
    assert (master.name, master.lr, master.maximize, master.elementwise) == (
        "adamw",
        0.5,
        True,
        True,
    )
    assert not Master(Adafactor()).elementwise
    assert master.to_dict() == {**AdamW(lr=0.5, maximize=True).to_dict(), "master": "float32"}


@pytest.mark.parametrize("inner", [SGD(momentum=0.9), AdamW(), NAdam(), Adafactor()])
def test_a_step_of_a_float16_model(inner: Optimizer) -> None:
    values, step = by_graph(inner, 2**-9, dtype=np.float16)
    expected, _ = by_graph(inner, 2**-9)
    for name in START:
        assert values[name].dtype == np.float16 and values[f"{name}.master"].dtype == np.float32
        np.testing.assert_array_equal(values[name], values[f"{name}.master"].astype(np.float16))
        np.testing.assert_allclose(values[f"{name}.master"], expected[name], atol=3e-3)
    assert {f.dtype for f in step.manifest.of_role("state")} == {"float32"}
