"""Every optimiser follows PyTorch: recorded values in float64 over arrays and in float32 through onnxruntime; a sweep."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import SGD, Optimizer
from onnxgrad.train.optimizers import OPTIMIZERS, Adadelta, Adafactor, Adagrad, Adam, AdamW, Lion, NAdam, RMSprop
from tests.train.optimizers.problem import START, T, X, by_arrays, by_graph, flat

# optimiser, learning rate, and what torch.optim makes of the problem's parameters in 20 steps of float64
# fmt: off
RECORDED: list[tuple[Optimizer, float, list[float]]] = [
    (SGD(), 0.0625, [0.7663380156755, -0.6827931225365, 0.9274477498582, 0.4968350433374, -0.3450971111825, 0.1769660407259, 0.4873209147565, -0.7251785652768, 0.7555509540136]),
    (SGD(momentum=0.9), 0.0625, [1.561917608895, -1.12960819845, 0.8185586443513, 0.1339267323749, -0.6076642979168, -0.4088001607167, 0.5279322484937, -0.2876747512015, 0.7947405292411]),
    (SGD(momentum=0.8, nesterov=True, weight_decay=0.1), 0.0625, [0.8868638479762, -0.7069055909015, 0.7233065493401, -0.03652747883128, -0.2323229148526, -0.3526706617892, 0.4987459800561, -0.2956006697123, 0.9092424251815]),
    (SGD(momentum=0.9, dampening=0.3), 0.0625, [1.378651174384, -1.032156277217, 0.8122935679163, 0.2485708743441, -0.4732579017442, -0.3283709597714, 0.5310008349837, -0.5034638504862, 0.4509534008995]),
    (SGD(maximize=True, weight_decay=0.5), 0.00390625, [0.2385772138501, -0.136366877601, 0.7557817127161, 0.48666251598, -0.6294679310394, 0.9733534231576, 0.04508002707617, -0.3221626744375, 0.809325126517]),
    (Adam(), 0.0625, [1.354538543527, -1.200288811659, 1.303735005081, 0.810108808252, -0.2061399153401, -0.03048364950279, 0.5033947685941, -0.9726614416293, 0.6547824383933]),
    (Adam(betas=(0.8, 0.5), amsgrad=True, weight_decay=0.1), 0.0625, [1.01823530978, -0.9454106760316, 0.7903336029868, 0.3433106083681, -0.2151846453882, 0.1347549388931, 0.5369779915045, -0.7393032085454, 0.7418735558562]),
    (Adam(maximize=True, eps=1e-3), 0.00390625, [0.2211150549655, -0.1211867679572, 0.7215385637596, 0.5806447092097, -0.6796039817946, 0.9791757532543, 0.02104719662597, -0.3207250229561, 0.7799870943434]),
    (AdamW(), 0.0625, [1.345427735804, -1.19270606556, 1.298136648948, 0.800470664274, -0.2046084275332, -0.0353534957567, 0.5023697251966, -0.9645888314795, 0.6575724515753]),
    (AdamW(betas=(0.8, 0.5), weight_decay=0.2, amsgrad=True), 0.0625, [1.010102242166, -0.8910602331644, 1.137451484557, 0.4750522192791, -0.1889890789035, 0.08155405912697, 0.4604391039873, -0.7541481359362, 0.6827402719756]),
    (AdamW(maximize=True), 0.00390625, [0.2207854917357, -0.1209485868851, 0.7204967049085, 0.5813297968498, -0.6792252562704, 0.978499141675, 0.02087632456061, -0.3203401117622, 0.7794542233259]),
    (NAdam(), 0.0625, [1.099041161428, -0.9632975732444, 1.105154922072, 0.4949553197374, -0.1976828620048, 0.1331424342775, 0.4618699599124, -0.9167218044294, 0.7409575364239]),
    (NAdam(betas=(0.8, 0.9), momentum_decay=0.1, weight_decay=0.1), 0.0625, [0.9271052934048, -0.8611441214814, 0.7647767118651, 0.1186179272372, -0.2258788993028, -0.0386205204674, 0.5027815388908, -0.6023368790367, 0.8637565781275]),
    (NAdam(weight_decay=0.2, decoupled_weight_decay=True, maximize=True), 0.00390625, [0.2269810188145, -0.1287201417856, 0.7186471386949, 0.569568816764, -0.6606226750126, 0.9548118557155, 0.02969661825669, -0.3245066143172, 0.7598774191054]),
    (Adagrad(), 0.0625, [0.7135219564522, -0.6073463111362, 1.128695997025, 0.6319218625894, -0.3040891581744, 0.514665371751, 0.4222614837602, -0.7481429806283, 0.6075980911421]),
    (Adagrad(lr_decay=0.05, weight_decay=0.1, initial_accumulator_value=0.2, eps=1e-3), 0.0625, [0.5817421125374, -0.4927857667982, 0.9057662018434, 0.4581845003596, -0.3638159124902, 0.5969841387725, 0.3727825375594, -0.6403286061013, 0.5563689572052]),
    (Adagrad(maximize=True), 0.00390625, [0.269886400381, -0.1699342686381, 0.7699605467999, 0.5325922096398, -0.6305416188573, 0.9302430259619, 0.06984647550865, -0.3696524154848, 0.7307593785947]),
    (RMSprop(), 0.0625, [1.121972922196, -0.8988358715711, 1.055764941434, -0.7113729218071, -0.1901312697017, -0.7890270657197, 0.3109266876158, 0.2845954974514, 0.6868311518293]),
    (RMSprop(alpha=0.9, centered=True, momentum=0.5, weight_decay=0.1), 0.0625, [0.6823636896997, -0.5512412832996, 0.6059611932636, -0.5323252850463, -0.1162325257611, -0.5923589159227, 0.3829556773186, 0.3736858946091, 1.167192831505]),
    (RMSprop(centered=True, eps=1e-2, maximize=True), 0.00390625, [-0.04768061362006, 0.1442040156447, 0.5226586381765, 0.8381038061782, -0.9760508645136, 1.265834939783, -0.2403975403454, -0.04445982873783, 1.093862318607]),
    (Adadelta(), 0.0625, [0.3043500596564, -0.2043517555595, 0.8043517517346, 0.4957758304472, -0.595667401044, 0.8956552204108, 0.1043479121488, -0.4043402216594, 0.69567726223]),
    (Adadelta(rho=0.5, eps=1e-3, weight_decay=0.1), 0.0625, [0.3965058352893, -0.2972444133655, 0.873188633931, 0.4401756591548, -0.5068994275399, 0.8033723966499, 0.1963213406193, -0.4938101227561, 0.6100293484827]),
    (Adadelta(maximize=True), 0.00390625, [0.2997269870741, -0.199726992991, 0.7997270399286, 0.5002729590102, -0.6002730813501, 0.9002730370533, 0.09972697839722, -0.3997269469776, 0.7002731237078]),
    (Adafactor(), 0.0625, [1.121160078038, -0.8079276992262, 1.189981847004, 0.402388398727, -0.2117076712632, 0.1529035137213, 0.3557672448192, -0.7318759119389, 0.7357495109639]),
    (Adafactor(beta2_decay=-0.5, eps=(1e-2, 0.5), d=2.0, weight_decay=0.1), 0.0625, [1.010178695209, -0.7685009425828, 0.9904870887835, 0.2817264054779, -0.1858250910048, 0.03206768813144, 0.3938581053781, -0.7196239979878, 0.8536464100392]),
    (Adafactor(maximize=True), 0.00390625, [0.2466537759275, -0.1637249801478, 0.7247107360659, 0.5165036939892, -0.6351584890474, 0.9442762713756, 0.07799083746446, -0.3778663537841, 0.7567652830647]),
]
# fmt: on


def label(value: Any) -> str:
    return repr(value) if isinstance(value, Optimizer) else ""


@pytest.mark.parametrize(("optimizer", "rate", "expected"), RECORDED, ids=label)
def test_arrays_follow_pytorch(optimizer: Optimizer, rate: float, expected: list[float]) -> None:
    np.testing.assert_allclose(flat(by_arrays(optimizer, rate)[0]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("optimizer", "rate", "expected"), RECORDED, ids=label)
def test_the_graph_follows_pytorch(optimizer: Optimizer, rate: float, expected: list[float]) -> None:
    np.testing.assert_allclose(flat(by_graph(optimizer, rate)[0]), expected, rtol=1e-5, atol=1e-5)


def test_every_option_matters() -> None:
    plain = {type(o): p for o, _, p in RECORDED if o == type(o)()}
    assert {type(o) for o, *_ in RECORDED} == set(plain) == set(OPTIMIZERS.values()) - {Lion}
    for optimizer, _, p in RECORDED:
        assert optimizer == type(optimizer)() or np.abs(np.subtract(p, plain[type(optimizer)])).max() > 1e-3


@pytest.mark.parametrize("cls", OPTIMIZERS.values())
def test_float64_parameters_and_any_step(cls: type[Optimizer]) -> None:
    for first in (1, 1_000_000):
        arrays, _ = by_arrays(cls(), 2**-6, steps=3, first=first)
        graph, step = by_graph(cls(), 2**-6, steps=3, dtype=np.float64, first=first)
        np.testing.assert_allclose(flat(graph), flat(arrays), rtol=1e-13)
        assert np.isfinite(flat(arrays)).all() and (flat(arrays) != flat(START)).all()
        assert {f.dtype for f in step.manifest.of_role("parameter", "state")} == {"float64"}


@pytest.mark.parametrize("cls", OPTIMIZERS.values())
def test_float32_stays_float32(cls: type[Optimizer]) -> None:
    narrow, _ = by_arrays(cls(), 2**-6, dtype=np.float32)  # which asserts as much after each step
    np.testing.assert_allclose(flat(narrow), flat(by_arrays(cls(), 2**-6)[0]), atol=1e-5)


@pytest.mark.parametrize(("optimizer", "rate", "_"), RECORDED, ids=label)
def test_a_zero_gradient_of_nothing_moves_nothing_but_decay(optimizer: Optimizer, rate: float, _: Any) -> None:
    for shape in ((), (3,), (2, 3), (2, 3, 4)):
        p, zero = np.full(shape, 0.5, np.float32), np.zeros(shape, np.float32)
        new, kept = optimizer.apply(p, zero, optimizer.state(p), step=1, rate=rate)
        assert np.isfinite(new).all() and all(np.isfinite(v).all() for v in kept.values())
        if not asdict(optimizer)["weight_decay"]:
            np.testing.assert_array_equal(new, p)


def test_lion_follows_the_paper() -> None:
    for optimizer in (Lion(), Lion(betas=(0.5, 0.75), weight_decay=0.25, maximize=True)):
        (b1, b2), rate, up = optimizer.betas, 2**-6, -1 if optimizer.maximize else 1
        p, m = {k: v.copy() for k, v in START.items()}, {k: 0 * v for k, v in START.items()}
        for _ in range(20):
            d = 2 * (p["s"] * (X @ p["w"]) + p["b"] - T) / T.size
            g = {"w": p["s"] * (X.T @ d), "b": d.sum(0), "s": np.sum(d * (X @ p["w"]))}
            for k in p:
                c = b1 * m[k] + (1 - b1) * up * g[k]
                p[k] = p[k] - rate * (np.sign(c) + optimizer.weight_decay * p[k])
                m[k] = b2 * m[k] + (1 - b2) * up * g[k]
        np.testing.assert_allclose(flat(by_arrays(optimizer, rate)[0]), flat(p), rtol=1e-12)
        np.testing.assert_allclose(flat(by_graph(optimizer, rate)[0]), flat(p), atol=1e-5)


def test_adafactor_keeps_rows_and_columns() -> None:
    state = Adafactor().state(np.zeros((5, 300, 200), np.float32))
    assert {k: v.shape for k, v in state.items()} == {"row_var": (5, 300, 1), "col_var": (5, 1, 200)}
    states = {f.name: f.shape for f in by_graph(Adafactor(), 2**-6, 1)[1].manifest.of_role("state")}
    assert states == {"w.row_var": (3, 1), "w.col_var": (1, 2), "b.variance": (2,), "s.variance": ()}


def test_the_manifest_names_the_hyperparameters() -> None:
    found = by_graph(SGD(lr=0.5, momentum=0.9), 0.5, 1)[1].manifest.optimizer
    assert found == {"name": "sgd", **asdict(SGD(lr=0.5, momentum=0.9))}
    assert type(SGD(lr=np.float32(0.5)).lr) is float  # numpy's numbers would take float32 to float64


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: SGD(lr=-1.0), "sgd: lr must be at least 0, not -1.0"),
        (lambda: SGD(nesterov=True), "nesterov needs a momentum"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas must be from 0 to 1, not 1 itself, not 1.0"),
        (lambda: Adam(betas=0.9), "betas must be 2 numbers"),  # type: ignore[arg-type]
        (lambda: AdamW(eps=float("nan")), "eps must be a finite number"),
        (lambda: AdamW(weight_decay="0.1"), "weight_decay must be a finite number, not '0.1'"),  # type: ignore[arg-type]
        (lambda: Adafactor(d=0.5), "d must be at least 1"),
        (lambda: Adafactor(beta2_decay=0.5), "beta2_decay must be"),
        (lambda: Adadelta(rho=1.5), "rho must be from 0 to 1"),
        (lambda: Lion(betas=(-0.1, 0.9)), "lion: betas must be"),
    ],
)
def test_hyperparameters_out_of_range(made: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        made()


def by_torch(optimizer: Optimizer, rate: float, steps: int = 20) -> Any:
    """By the class of the same name in torch.optim with options of the same names, in float64."""
    import torch

    p = {k: torch.tensor(v, requires_grad=True) for k, v in START.items()}
    options = {**asdict(optimizer), "lr": rate}
    theirs = getattr(torch.optim, type(optimizer).__name__)(list(p.values()), **options)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # which NAdam's mu_product takes
    for _ in range(steps):
        theirs.zero_grad()
        ((p["s"] * (torch.tensor(X) @ p["w"]) + p["b"] - torch.tensor(T)) ** 2).mean().backward()
        theirs.step()
    torch.set_default_dtype(usual)
    return flat({k: v.detach().numpy() for k, v in p.items()})


@pytest.mark.torch
@pytest.mark.parametrize(("optimizer", "rate", "expected"), RECORDED, ids=label)
def test_the_record_is_what_pytorch_computes(optimizer: Optimizer, rate: float, expected: list[float]) -> None:
    np.testing.assert_allclose(by_torch(optimizer, rate), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.torch
def test_names_and_defaults_are_those_of_pytorch() -> None:
    import torch

    for cls in set(OPTIMIZERS.values()) - {Lion}:
        theirs = inspect.signature(getattr(torch.optim, cls.__name__)).parameters
        ours = asdict(cls())
        assert ours == {name: theirs[name].default for name in ours}
        rest = set(theirs) - set(ours) - {"params"}
        assert rest <= {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}


def drawn(random: np.random.Generator) -> Optimizer:
    """An optimiser with options at random."""
    u = random.uniform
    betas = (u(0, 0.98), u(0.3, 0.9999))
    maximize, flag, decay = bool(random.integers(2)), bool(random.integers(2)), random.choice([0.0, u(0, 0.5)])
    common = {"weight_decay": decay, "maximize": maximize}
    eps = 10 ** u(-9, -2)
    nesterov = bool(random.integers(2))
    return [
        SGD(momentum=u(0.1, 0.95), dampening=0.0 if nesterov else u(0, 1), nesterov=nesterov, **common),
        Adam(betas=betas, eps=eps, amsgrad=flag, **common),
        AdamW(betas=betas, eps=eps, amsgrad=flag, **common),
        NAdam(betas=betas, eps=eps, momentum_decay=u(0, 0.2), decoupled_weight_decay=flag, **common),
        Adagrad(lr_decay=u(0, 0.2), initial_accumulator_value=u(0, 1), eps=eps, **common),
        RMSprop(alpha=u(0.5, 0.999), eps=eps, momentum=random.choice([0.0, u(0, 0.9)]), centered=flag, **common),
        Adadelta(rho=u(0.1, 0.99), eps=eps, **common),
        Adafactor(beta2_decay=-u(0.1, 1), eps=(random.choice([None, eps]), u(0, 1)), d=u(1, 3), **common),
    ][random.integers(8)]


@pytest.mark.torch
@pytest.mark.parametrize("seed", range(200))
def test_any_options_follow_pytorch(seed: int) -> None:
    random = np.random.default_rng(seed)
    optimizer, rate = drawn(random), 2.0 ** random.integers(-10, -5)
    rate = rate / 64 if optimizer.maximize else rate  # for there is no largest loss
    expected = by_torch(optimizer, rate)
    np.testing.assert_allclose(flat(by_arrays(optimizer, rate)[0]), expected, rtol=1e-10, atol=1e-10)
    if seed % 10 == 0:
        np.testing.assert_allclose(flat(by_graph(optimizer, rate)[0]), expected, rtol=1e-5, atol=1e-5)
