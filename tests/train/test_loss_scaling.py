"""Loss scaling by GradScaler's rule, and a whole float16 update with a gradient that overflows, graph against arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.train import array_math
from onnxgrad.train.loss_scaling import LossScaling, all_finite, kept
from onnxgrad.train.optimizers import AdamW, Moment
from onnxgrad.train.optimizers.master import Master
from tests.train.emitted import computed

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
    with pytest.raises(InputError, match="no gradients"):
        all_finite([])


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
        return Moment(np.float32(0.1), np.float64(t), array_math, array_math.element_type(p))

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
