"""Schedules give PyTorch's rates, in Python and from the same formula in a graph."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.train import SGD
from onnxgrad.train.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    CosineWarmRestarts,
    Exponential,
    Linear,
    MultiStep,
    OneCycle,
    Polynomial,
    ReduceOnPlateau,
    Schedule,
    Sequential,
    Step,
    finite_rate,
    rate_of,
    schedule_of,
    warm_up,
)  # fmt: skip
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.train.common import step

STEPS = [1, 2, 3, 5, 8, 12, 20]
# at these steps, by torch.optim.lr_scheduler
RECORDED: list[tuple[Schedule, list[float]]] = [
    (Constant(0.5), [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
    (Linear(0.5), [0.1666666666667, 0.2333333333333, 0.3, 0.4333333333333, 0.5, 0.5, 0.5]),
    (Linear(0.5, 0.1, 0.8, 10), [0.05, 0.085, 0.12, 0.19, 0.295, 0.4, 0.4]),
    (Polynomial(0.5), [0.5, 0.4, 0.3, 0.1, 0, 0, 0]),
    (Polynomial(0.5, 10, 2.0), [0.5, 0.405, 0.32, 0.18, 0.045, 0, 0]),
    (
        Cosine(0.5, T_max=7, eta_min=0.01),
        [
            0.5,
            0.4757373726361,
            0.4077550014554,
            0.2004823711807,
            0.01,
            0.3095176288193,
            0.1022449985446,
        ],
    ),
    (
        CosineWarmRestarts(0.5, 7, eta_min=0.01),
        [
            0.5,
            0.4757373726361,
            0.4077550014554,
            0.2004823711807,
            0.5,
            0.2004823711807,
            0.1022449985446,
        ],
    ),
    (
        CosineWarmRestarts(0.5, 2, 2),
        [0.5, 0.25, 0.5, 0.25, 0.4809698831278, 0.1543291419087, 0.3888925582549],
    ),
    (
        CosineWarmRestarts(0.5, 3, 3, 0.05),
        [
            0.5,
            0.3875,
            0.1625,
            0.4864308396768,
            0.3140708399751,
            0.06356916032317,
            0.4294043685205,
        ],
    ),
    (
        Exponential(0.5, 0.9),
        [0.5, 0.45, 0.405, 0.32805, 0.23914845, 0.156905298045, 0.06754258588365],
    ),
    (Step(0.5, 3), [0.5, 0.5, 0.5, 0.05, 0.005, 0.0005, 5e-07]),
    (MultiStep(0.5, (2, 5, 9), 0.5), [0.5, 0.5, 0.25, 0.25, 0.125, 0.0625, 0.0625]),
    (
        OneCycle(0.5, 20),
        [
            0.02,
            0.06583592135001,
            0.18583592135,
            0.45416407865,
            0.4752423160067,
            0.3056310109681,
            2e-06,
        ],
    ),
    (
        OneCycle(0.5, 20, 0.4, "linear", 10.0, 100.0, three_phase=True),
        [0.05, 0.1142857142857, 0.1785714285714, 0.3071428571429, 0.5, 0.2428571428571, 0.0005],
    ),
    (
        Sequential((Linear(0.5, 0.1, 1.0, 4), Cosine(0.5, 8)), (4,)),
        [0.05, 0.1625, 0.275, 0.5, 0.3456708580913, 0.01903011687218, 0.4809698831278],
    ),
]


def in_a_graph(schedule: Schedule, steps: list[int]) -> list[float]:
    program = load(parse("g (int64 step) => (int64 same) { same = Identity (step) }"))
    with emitting(program.main, share=True):
        rate = schedule.emit(program.main.inputs[0])
    program.main.add_output(rate)
    proto = to_proto(program)
    found = [run(proto, {"step": np.array(s)})[rate.name] for s in steps]
    assert {(f.shape, f.dtype) for f in found} == {((), np.dtype(np.float64))}
    return [float(f) for f in found]


@pytest.mark.parametrize(("schedule", "expected"), RECORDED)
def test_rates_are_those_of_pytorch(schedule: Schedule, expected: list[float]) -> None:
    np.testing.assert_allclose([schedule(s) for s in STEPS], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "schedule", [*(s for s, _ in RECORDED), warm_up(OneCycle(0.5, 12, three_phase=True), 3)]
)
def test_the_graph_computes_the_same(schedule: Schedule) -> None:
    steps = [*STEPS, 1_000_000]
    np.testing.assert_allclose(
        in_a_graph(schedule, steps), [schedule(s) for s in steps], rtol=1e-9, atol=1e-18
    )
    assert isinstance(schedule(1), float)


def test_every_schedule_is_recorded() -> None:
    assert {type(s) for s, _ in RECORDED} | {ReduceOnPlateau} == set(SCHEDULES.values())
    assert {name: SCHEDULES[name].__name__.lower() for name in SCHEDULES} == {
        name: name for name in SCHEDULES
    }


def test_warm_up_then_cosine() -> None:
    found = warm_up(Cosine(2.0, T_max=10), steps=4)
    np.testing.assert_allclose(
        [found(s) for s in (1, 2, 4, 5, 10, 15)], [0, 0.5, 1.5, 2, 1, 0], atol=1e-15
    )
    assert json.loads(json.dumps(found.to_dict()))["schedules"][1] == {
        "name": "cosine", "lr": 2.0, "T_max": 10, "eta_min": 0.0,
    }  # fmt: skip


def test_a_cycle_stays_at_its_end() -> None:
    cycle = OneCycle(1.0, 10)
    assert cycle(10) == cycle(11) == cycle(10_000) == pytest.approx(1 / 25e4)


def test_one_of_your_own() -> None:
    class Inverse(Schedule):
        def after(self, done: Any, math: Any) -> Any:
            return 0.5 / math.Sqrt(done + 1.0)

    np.testing.assert_allclose(
        in_a_graph(warm_up(Inverse(), 2), [1, 2, 3, 6]), [0, 0.25, 0.5, 0.25]
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Constant(float("nan")), "constant: lr must be a number, not nan"),
        (lambda: Constant(-1.0), "at least 0, not -1.0"),
        (lambda: Cosine(1.0, 0), "cosine: T_max must be at least 1, not 0"),
        (lambda: Step(1.0, 2.5), "step_size must be a whole number"),  # type: ignore[arg-type]
        (
            lambda: Cosine("hello", 10),
            "cosine: lr must be a number, not 'hello'",
        ),  # type: ignore[arg-type]
        (lambda: Exponential(1.0, True), "gamma must be"),
        (lambda: MultiStep(1.0, (3, 0)), "milestones must be at least 1, not 0"),
        (
            lambda: OneCycle(1.0, 10, anneal_strategy="exp"),
            "anneal_strategy must be one of cos, linear",
        ),  # type: ignore[arg-type]
        (lambda: OneCycle(1.0, 10, 1.5), "pct_start must be from 0 to 1"),
        (lambda: OneCycle(1.0, 10, div_factor=0), "div_factor must be a finite number above 0"),
        (lambda: Sequential((Constant(1.0),), (3,)), "1 schedules need 0 milestones"),
        (lambda: Sequential((Constant(1.0), Constant(2.0)), (0,)), "milestones that rise"),
        (lambda: Constant(1.0)(0), "a step counts from 1, not 0"),
        (lambda: CosineWarmRestarts(1.0, 0), "cosinewarmrestarts: T_0 must be at least 1, not 0"),
        (lambda: CosineWarmRestarts(1.0, 5, 0), "T_mult must be at least 1"),
        (lambda: ReduceOnPlateau(1.0, factor=1.0), "factor must be from 0 to below 1, not 1.0"),
        (lambda: ReduceOnPlateau(1.0, "up"), "mode must be one of min, max"),  # type: ignore[arg-type]
        (lambda: warm_up(ReduceOnPlateau(1.0), 3), "depends on held-out data, not on the step"),
        (lambda: step(schedule=ReduceOnPlateau(1.0)), "which a graph lacks: pass it as Trainer"),
        (lambda: ReduceOnPlateau(1.0, metric="f1").check(["loss"]), "'f1' is not evaluated"),
    ],
)
def test_what_makes_no_schedule(made: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        made()


def by_torch(make: Callable[[Any, Any], Any], lr: float, count: int) -> list[float]:
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler, rates = make(torch.optim.lr_scheduler, optimizer), []
    for _ in range(count):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def theirs(schedule: Schedule) -> Callable[[Any, Any], Any]:
    """The scheduler of PyTorch with fields of the same names."""
    fields = {k: v for k, v in schedule.to_dict().items() if k not in ("name", "lr")}
    if isinstance(schedule, Sequential):
        parts = [theirs(s) for s in schedule.schedules]
        return lambda of, o: of.SequentialLR(
            o, [p(of, o) for p in parts], milestones=list(schedule.milestones)
        )
    if isinstance(schedule, OneCycle):
        return lambda of, o: of.OneCycleLR(o, **fields, cycle_momentum=False)
    if isinstance(schedule, Constant):
        return lambda of, o: of.ConstantLR(o, factor=1.0)
    called = {
        "Cosine": "CosineAnnealingLR", "CosineWarmRestarts": "CosineAnnealingWarmRestarts"
    }.get(type(schedule).__name__, f"{type(schedule).__name__}LR")  # fmt: skip
    return lambda of, o: getattr(of, called)(o, **fields)


def drawn(random: np.random.Generator, lr: float) -> Schedule:
    count, u = int(random.integers(1, 30)), random.uniform
    plain: list[Schedule] = [
        Constant(lr),
        Linear(lr, u(0.01, 1), u(0, 1), count),
        Polynomial(lr, count, u(0.5, 3)),
        Cosine(lr, count, u(0, lr)),
        Exponential(lr, u(0.5, 1)),
        Step(lr, count, u(0.1, 1)),
        MultiStep(lr, tuple(sorted({int(m) for m in random.integers(1, 40, 3)})), u(0.1, 1)),
    ]
    strategy = random.choice(["cos", "linear"])
    cycle = OneCycle(
        lr, 40, u(0.06, 0.5), str(strategy), u(2, 30), u(2, 1e4), bool(random.integers(2))
    )  # type: ignore[arg-type]
    first, second = random.choice(len(plain), 2)
    again = CosineWarmRestarts(lr, int(random.integers(1, 9)), int(random.integers(1, 4)), u(0, lr))
    found = [*plain, cycle, Sequential((plain[first], plain[second]), (count,)), again]
    return found[random.integers(len(found))]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*lr_scheduler", "ignore:The epoch parameter")
@pytest.mark.parametrize("seed", range(100))
def test_any_schedule_follows_pytorch(seed: int) -> None:
    random = np.random.default_rng(seed)
    lr = random.uniform(0.01, 1)
    schedule = drawn(random, lr)
    found = [schedule(s) for s in range(1, 41)]
    np.testing.assert_allclose(
        found, by_torch(theirs(schedule), lr, 40), rtol=1e-9, atol=1e-12, err_msg=str(schedule)
    )


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*lr_scheduler", "ignore:The epoch parameter")
@pytest.mark.parametrize(("schedule", "expected"), RECORDED)
def test_the_record_is_what_pytorch_computes(schedule: Schedule, expected: list[float]) -> None:
    rates = by_torch(theirs(schedule), 0.5, 20)
    np.testing.assert_allclose([rates[s - 1] for s in STEPS], expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    "schedule",
    [
        Constant(0.5),
        MultiStep(0.5, (2, 4)),
        OneCycle(0.5, total_steps=9, anneal_strategy="linear"),
        warm_up(warm_up(Cosine(0.5, T_max=9), 2), 3),
    ],
    ids=lambda s: s.name,
)
def test_a_schedule_comes_back_from_what_it_told(schedule: Schedule) -> None:
    found = schedule_of(json.loads(json.dumps(schedule.to_dict())))
    assert found is not None
    assert [found(n) for n in range(1, 12)] == [schedule(n) for n in range(1, 12)]


def test_a_class_of_ones_own_goes_by_no_name_of_ours() -> None:
    own = type("Cosine", (Constant,), {"__module__": "mine"})(0.5)
    assert own.name == "mine:Cosine"
    assert schedule_of(own.to_dict()) is None
    assert schedule_of(Sequential((own, Constant(1.0)), (3,)).to_dict()) is None


def test_without_a_rate_the_optimiser_has_its_own() -> None:
    manifest = step(SGD(lr=0.25)).manifest
    assert rate_of(manifest, None) == 0.25
    assert rate_of(manifest, 0.5) == 0.5
    with pytest.raises(InputError, match="no learning rate of its own"):
        rate_of(replace(manifest, optimizer={"name": "sgd"}), None)
    with pytest.raises(InputError, match="must be at least 0, not -1"):
        rate_of(manifest, -1)


def test_the_schedule_inside_comes_back_from_the_manifest() -> None:
    for schedule in (Cosine(0.5, T_max=9), warm_up(Step(0.5, step_size=3), 4)):
        found: Any = rate_of(step(schedule=schedule).manifest, None)
        assert [found(n) for n in range(1, 9)] == [schedule(n) for n in range(1, 9)]


def test_a_schedule_of_ones_own_is_not_known() -> None:
    manifest = replace(step().manifest, schedule={"name": "mine:Cosine", "lr": 1.0})
    found: Any = rate_of(manifest, None)
    assert math.isnan(found(1))


@pytest.mark.parametrize("rate", [math.nan, math.inf, "fast", None, True])
def test_what_is_no_rate(rate: Any) -> None:
    with pytest.raises(InputError, match="learning rate must be finite"):
        finite_rate(rate)
    assert finite_rate(np.float32(0.5)) == 0.5


def test_every_restart_is_at_its_step() -> None:
    """They come after 3, 9, 21, 45, ... updates: a logarithm is off by a rounding at some of them."""
    for factor in (2, 3, 5, 7, 10):
        schedule, begins = CosineWarmRestarts(1.0, 3, factor), 1
        for length in (3 * factor**n for n in range(8)):
            assert schedule(begins) == 1.0 and schedule(begins - 1 or 1) < 0.9 + (begins == 1)
            begins += length


# results, and the rates after each of them, by torch's ReduceLROnPlateau from 1.0 on
RESULTS = [5.0, 4.0, 4.0, 3.9999, 4.1, 3.0, math.nan, 3.0, 3.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
PLATEAUS: list[tuple[ReduceOnPlateau, list[float]]] = [
    (
        ReduceOnPlateau(1.0, patience=1),
        [1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001, 1e-05],
    ),
    (
        ReduceOnPlateau(1.0, factor=0.5, patience=0, cooldown=2, min_lr=0.2),
        [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2],
    ),
    (
        ReduceOnPlateau(1.0, "max", 0.5, 2, 0.1, "abs"),
        [
            1,
            1,
            1,
            0.5,
            0.5,
            0.5,
            0.25,
            0.25,
            0.25,
            0.125,
            0.125,
            0.125,
            0.0625,
            0.0625,
            0.0625,
            0.03125,
        ],
    ),
    (
        ReduceOnPlateau(1.0, "min", 0.1, 0, 0.3, "rel", eps=1e-4),
        [
            1,
            0.1,
            0.01,
            0.001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
            0.0001,
        ],
    ),
]


def rates_on(schedule: ReduceOnPlateau) -> list[float]:
    kept: Any = None
    return [float((kept := schedule.judged(kept, {"loss": x}))["rate"]) for x in RESULTS]


@pytest.mark.parametrize(("schedule", "expected"), PLATEAUS)
def test_a_plateau_reduces_as_in_pytorch(schedule: ReduceOnPlateau, expected: list[float]) -> None:
    np.testing.assert_allclose(rates_on(schedule), expected, rtol=1e-12)


def plateau_by_torch(schedule: ReduceOnPlateau) -> list[float]:
    import torch

    fields = {k: v for k, v in schedule.to_dict().items() if k not in ("name", "lr", "metric")}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=schedule.lr)
    theirs, found = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **fields), []
    for x in RESULTS:
        theirs.step(x)
        found.append(float(optimizer.param_groups[0]["lr"]))
    return found


@pytest.mark.torch
@pytest.mark.parametrize(("schedule", "expected"), PLATEAUS)
def test_the_rates_on_a_plateau_are_what_pytorch_computes(
    schedule: ReduceOnPlateau, expected: list[float]
) -> None:
    np.testing.assert_allclose(plateau_by_torch(schedule), expected, rtol=1e-12)
