"""What holds of every optimiser: names, defaults, ranges, dtypes, any step; and any options against PyTorch."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad import op
from onnxgrad.errors import InputError
from onnxgrad.train import SGD, Optimizer, array_math
from onnxgrad.train.optimizers import (
    OPTIMIZERS,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Custom,
    Lion,
    Moment,
    Muon,
    NAdam,
    RMSprop,
)
from tests.helpers import onnxruntime_version
from tests.train.optimizers import test_formulas, test_matrices
from tests.train.optimizers.problem import START, by_arrays, by_graph, by_torch, flat

RECORDED = [*test_formulas.RECORDED, *test_matrices.RECORDED]


def label(value: Any) -> str:
    return repr(value) if isinstance(value, Optimizer) else ""


def test_every_option_matters() -> None:
    plain = {type(o): p for o, _, p in RECORDED if o == type(o)()}
    assert {type(o) for o, *_ in RECORDED} == set(plain) == set(OPTIMIZERS.values()) - {Lion}
    for optimizer, _, p in RECORDED:
        assert (
            optimizer == type(optimizer)()
            or np.abs(np.subtract(p, plain[type(optimizer)])).max() > 1e-3
        )


def float64_of(cls: type[Optimizer]) -> float:
    """onnxruntime below 1.32 moves the factor of a float64 product into FusedMatMul, whose alpha is a float32."""
    return 1e-7 if cls is Muon and onnxruntime_version() < (1, 32) else 1e-13


@pytest.mark.parametrize("cls", OPTIMIZERS.values())
def test_float64_parameters_and_any_step(cls: type[Optimizer]) -> None:
    for first in (1, 1_000_000):
        arrays, _ = by_arrays(cls(), 2**-6, steps=3, first=first)
        graph, step = by_graph(cls(), 2**-6, steps=3, dtype=np.float64, first=first)
        np.testing.assert_allclose(flat(graph), flat(arrays), rtol=float64_of(cls))
        assert np.isfinite(flat(arrays)).all() and (flat(arrays) != flat(START)).all()
        assert {f.dtype for f in step.manifest.of_role("parameter", "state")} == {"float64"}


@pytest.mark.parametrize("cls", OPTIMIZERS.values())
def test_float32_stays_float32(cls: type[Optimizer]) -> None:
    narrow, _ = by_arrays(cls(), 2**-6, dtype=np.float32)  # which asserts as much after each step
    np.testing.assert_allclose(flat(narrow), flat(by_arrays(cls(), 2**-6)[0]), atol=1e-5)


@pytest.mark.parametrize(("optimizer", "rate", "_"), RECORDED, ids=label)
def test_zero_gradients_move_nothing_where_nothing_decays(
    optimizer: Optimizer, rate: float, _: Any
) -> None:
    for shape in ((), (3,), (2, 3), (2, 3, 4)):
        p, zero = np.full(shape, 0.5, np.float32), np.zeros(shape, np.float32)
        new, kept = optimizer.apply(p, zero, optimizer.state(p), step=1, rate=rate)
        assert np.isfinite(new).all() and all(np.isfinite(v).all() for v in kept.values())
        if not asdict(optimizer)["weight_decay"]:
            np.testing.assert_array_equal(new, p)


def test_the_manifest_names_the_hyperparameters() -> None:
    found = by_graph(SGD(lr=0.5, momentum=0.9), 0.5, 1)[1].manifest.optimizer
    assert found == {"name": "sgd", **asdict(SGD(lr=0.5, momentum=0.9))}
    assert (
        type(SGD(lr=np.float32(0.5)).lr) is float
    )  # numpy's numbers would take float32 to float64


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: SGD(lr=-1.0), "sgd: lr must be a finite number, at least 0, not -1.0"),
        (lambda: SGD(nesterov=True), "nesterov needs a momentum"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas must be from 0 to 1, not 1 itself, not 1.0"),
        (lambda: Adam(betas=0.9), "betas must be a list, not 0.9"),  # type: ignore[arg-type]
        (lambda: AdamW(eps=float("nan")), "eps must be a number, not nan"),
        (lambda: AdamW(weight_decay="0.1"), "weight_decay must be a number, not '0.1'"),  # type: ignore[arg-type]
        (lambda: Adafactor(d=0.5), "d must be a finite number, at least 1"),
        (lambda: Adafactor(beta2_decay=0.5), "beta2_decay must be"),
        (lambda: Adadelta(rho=1.5), "rho must be from 0 to 1"),
        (lambda: Lion(betas=(-0.1, 0.9)), "lion: betas must be"),
    ],
)
def test_hyperparameters_out_of_range(made: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        made()


def test_a_moment() -> None:
    at = Moment(np.float32(0.1), np.float64(2), array_math, TensorProto.FLOAT16)
    assert at.rate == np.float16(0.1) and at.rate.dtype == np.float16
    assert at.correction(0.9) == 1 - 0.9**2 and at.correction(0.5) == 0.75
    wide = at.of(TensorProto.DOUBLE)
    assert wide.rate.dtype == np.float64 and wide.number(np.float32(0.5)).dtype == np.float64


def test_defaults() -> (
    None
):  # which the next test compares with PyTorch's, and Lion's are the paper's
    rates = {"sgd": 1e-3, "adam": 1e-3, "adamw": 1e-3, "nadam": 2e-3, "radam": 1e-3, "adagrad": 1e-2, "rmsprop": 1e-2,
             "adadelta": 1.0, "lion": 1e-4, "adafactor": 1e-2, "muon": 1e-3}  # fmt: skip
    assert {name: cls().lr for name, cls in OPTIMIZERS.items()} == rates
    assert asdict(Lion()) == {
        "lr": 1e-4,
        "maximize": False,
        "betas": (0.9, 0.99),
        "weight_decay": 0.0,
    }
    assert [name for name, cls in OPTIMIZERS.items() if not cls.elementwise] == [
        "muon",
        "adafactor",
    ]


@pytest.mark.torch
def test_names_and_defaults_are_those_of_pytorch() -> None:
    import torch

    for cls in set(OPTIMIZERS.values()) - {Lion}:
        theirs = inspect.signature(getattr(torch.optim, cls.__name__)).parameters
        ours = asdict(cls())
        if cls is Muon:  # it cannot maximise there, and None is "original"
            assert not ours.pop("maximize") and ours.pop("adjust_lr_fn") == "original"
            theirs = {k: v for k, v in theirs.items() if k != "adjust_lr_fn"}
        assert ours == {name: theirs[name].default for name in ours}
        rest = set(theirs) - set(ours) - {"params"}
        assert rest <= {
            "foreach",
            "fused",
            "capturable",
            "differentiable",
            "decoupled_weight_decay",
        }


def drawn(random: np.random.Generator) -> Optimizer:
    """An optimiser with options at random."""
    u = random.uniform
    betas = (u(0, 0.98), u(0.3, 0.9999))
    maximize, flag, decay = (
        bool(random.integers(2)),
        bool(random.integers(2)),
        random.choice([0.0, u(0, 0.5)]),
    )
    common = {"weight_decay": decay, "maximize": maximize}
    eps = 10 ** u(-9, -2)
    nesterov = bool(random.integers(2))
    return [
        SGD(
            momentum=u(0.1, 0.95),
            dampening=0.0 if nesterov else u(0, 1),
            nesterov=nesterov,
            **common,
        ),
        Adam(betas=betas, eps=eps, amsgrad=flag, **common),
        AdamW(betas=betas, eps=eps, amsgrad=flag, **common),
        NAdam(
            betas=betas, eps=eps, momentum_decay=u(0, 0.2), decoupled_weight_decay=flag, **common
        ),
        Adagrad(lr_decay=u(0, 0.2), initial_accumulator_value=u(0, 1), eps=eps, **common),
        RMSprop(
            alpha=u(0.5, 0.999),
            eps=eps,
            momentum=random.choice([0.0, u(0, 0.9)]),
            centered=flag,
            **common,
        ),
        Adadelta(rho=u(0.1, 0.99), eps=eps, **common),
        Adafactor(
            beta2_decay=-u(0.1, 1), eps=(random.choice([None, eps]), u(0, 1)), d=u(1, 3), **common
        ),
    ][random.integers(8)]


@pytest.mark.torch
@pytest.mark.parametrize("seed", range(200))
def test_any_options_follow_pytorch(seed: int) -> None:
    random = np.random.default_rng(seed)
    optimizer, rate = drawn(random), 2.0 ** random.integers(-10, -5)
    rate = rate / 64 if optimizer.maximize else rate  # for there is no largest loss
    expected = by_torch(optimizer, rate)
    np.testing.assert_allclose(
        flat(by_arrays(optimizer, rate)[0]), expected, rtol=1e-10, atol=1e-10
    )
    if seed % 10 == 0:
        np.testing.assert_allclose(
            flat(by_graph(optimizer, rate)[0]), expected, rtol=1e-5, atol=1e-5
        )


def momentum(math: Any, p: Any, g: Any, state: Any, at: Any) -> Any:
    v = 0.9 * state["v"] + g
    return p - at.rate * v, {"v": v}


def test_the_example_of_the_docstring_is_sgd_with_momentum() -> None:
    example = dedent((Custom.__doc__ or "").partition("another name.\n")[2])
    made: list[Optimizer] = []
    exec(
        example,
        {
            "training_step": lambda m, optimizer: made.append(optimizer),
            "model": None,
            "Custom": Custom,
        },
    )
    (optimizer,), expected = made, by_arrays(SGD(momentum=0.9), 2**-6)[0]
    np.testing.assert_allclose(flat(by_arrays(optimizer, 2**-6)[0]), flat(expected), rtol=1e-13)
    found, step = by_graph(optimizer, 2**-6)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-5)
    assert json.loads(step.manifest.to_json())["optimizer"] == {
        "name": "custom:momentum",
        "lr": 1e-3,
        "maximize": False,
    }


def test_no_name_of_ours_stands_for_a_rule_of_yours() -> None:
    def adam(math: Any, p: Any, g: Any, state: Any, at: Any) -> Any:
        return p - at.rate * g, {}

    class Adam(SGD):
        pass

    assert Custom(adam).name == "custom:adam" and Adam().name == f"{__name__}:Adam"


def test_any_operator_the_step_and_states_of_other_shapes() -> None:
    def signs(
        math: Any, p: Any, g: Any, state: Any, at: Any
    ) -> Any:  # against the largest gradient so far
        largest = math.Max(state["largest"], math.Sqrt(math.ReduceSumSquare(g, keepdims=0)))
        rate = at.number(1.0 / math.Sqrt(at.step)) * at.rate
        return p - rate * (g / largest), {"largest": largest}

    optimizer = Custom(signs, lambda p: {"largest": np.zeros((), p.dtype)}, lr=0.25)
    p = {k: v.copy() for k, v in START.items()}
    expected, states = by_arrays(optimizer, 2**-6, 3)
    assert states["w"]["largest"].shape == () and not optimizer.elementwise and optimizer.lr == 0.25
    np.testing.assert_allclose(flat(by_graph(optimizer, 2**-6, 3)[0]), flat(expected), rtol=1e-5)
    assert (flat(expected) != flat(p)).all()


def test_maximize_and_elementwise_are_options() -> None:
    up = Custom(momentum, {"v": 0.0}, maximize=True, elementwise=True)
    expected, _ = by_arrays(SGD(momentum=0.9, maximize=True), 2**-8)
    np.testing.assert_allclose(flat(by_arrays(up, 2**-8)[0]), flat(expected), rtol=1e-13)
    assert up.elementwise and asdict(up)["maximize"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda p, g, v: p, "not a pair"),
        (lambda p, g, v: (p, {}), r"returned the states \[\], but received \['v'\]"),
        (lambda p, g, v: (p, {"v": v, "w": v}), r"\['v', 'w'\]"),
        (lambda p, g, v: (0.5, {"v": v}), "the new parameter is 0.5, the old one"),
        (
            lambda p, g, v: (p, {"v": op.ReduceSum(v) if hasattr(v, "name") else v.sum()}),
            "the new state 'v' is",
        ),
        (
            lambda p, g, v: (p > 0 if isinstance(p, np.ndarray) else op.Greater(p, 0.0), {"v": v}),
            "the new parameter",
        ),
    ],
)
def test_what_does_not_fit(answer: Any, words: str) -> None:
    optimizer = Custom(lambda math, p, g, state, at: answer(p, g, state["v"]), {"v": 0.0})
    for made in (by_arrays, by_graph):
        with pytest.raises(InputError, match=words):
            made(optimizer, 0.5, 1)


def test_a_state_that_is_no_array() -> None:
    with pytest.raises(InputError, match="the state 'v' is"):
        Custom(momentum, lambda p: {"v": "zero"}).state(START["w"])  # type: ignore[dict-item,return-value]
