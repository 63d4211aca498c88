"""Norms to the last digits of float32, of tensors of any size and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.train import array_math
from onnxgrad.train.update.clipping import (
    averaged_and_clipped,
    clip_by_value,
    global_norm,
    sum_of_squares,
    times,
)
from tests.train.common import step
from tests.train.emitted import computed


@pytest.mark.parametrize(
    "shape", [(), (3,), (7, 5), (1000, 2000), (1, 1500, 900), (3, 4, 200, 300), (2, 100_000)]
)
def test_squares_add_up_exactly(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    exact = np.square(x, dtype=np.float64).sum()
    found = computed(lambda v: {"y": sum_of_squares(v["x"])}, {"x": x})["y"]
    assert found.dtype == np.float32 and found.shape == ()
    np.testing.assert_allclose(found, exact, rtol=3e-6)
    np.testing.assert_allclose(sum_of_squares(x, array_math), exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((np.float32, np.float32), np.float32),
        ((np.float16, np.float32), np.float32),
        ((np.float16, np.float16), np.float32),
        ((np.float16, np.float64), np.float64),
    ],
)
def test_a_norm_over_tensors(dtypes: Any, expected: Any) -> None:
    a, b = (
        np.full((2, 3), 300, dtypes[0]),
        np.full(2, 4000, dtypes[1]),
    )  # whose squares float16 does not hold
    for found in (
        computed(lambda v: {"y": global_norm([v["a"], v["b"]])}, {"a": a, "b": b})["y"],
        global_norm([a, b], array_math),
    ):
        assert found.dtype == expected
        np.testing.assert_allclose(found, np.sqrt(6 * 300.0**2 + 2 * 4000.0**2), rtol=1e-6)


GS = [np.float32([[3, -4], [0, 12]]), np.float32([0.5]), np.float32(-2)]
# by torch.nn.utils.clip_grad_norm_(.., 2.0), which returned NORM
NORM = 13.162446975708008
CLIPPED = [0.4558422863, -0.6077896953, 0.0, 1.823369145, 0.07597371191, -0.3038948476]


@dataclass(frozen=True)
class How:
    """The options of a step that clips."""

    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1


def clipped(gs: list[Any], how: How, math: Any = op) -> tuple[list[Any], Any]:
    made, factor, norm = averaged_and_clipped(
        gs, how, norm=True, norm_of=lambda gs: global_norm(gs, math), math=math
    )
    return [g if factor is None else times(g, factor, math) for g in made], norm


def both_ways(gs: list[Any], *limits: Any) -> list[tuple[list[Any], Any]]:
    """(clipped, norm) by arrays and by a graph."""
    feeds, how = {f"g{i}": g for i, g in enumerate(gs)}, How(*limits)

    def formula(v: dict[str, Any]) -> dict[str, Any]:
        found, norm = clipped([v[name] for name in feeds], how)
        return {**{f"c{i}": c for i, c in enumerate(found)}, "norm": norm}

    made = computed(formula, feeds)
    with np.errstate(all="ignore"):
        own = clipped(gs, how, array_math)
    return [own, ([made[f"c{i}"] for i in range(len(gs))], made["norm"])]


def flat(gs: list[Any]) -> Any:
    return np.concatenate([np.ravel(g) for g in gs])


def test_by_norm_as_pytorch() -> None:
    for found, norm in both_ways(GS, 2.0):
        np.testing.assert_allclose(flat(found), CLIPPED, rtol=1e-6)
        np.testing.assert_allclose(norm, NORM, rtol=1e-6)
        assert [(f.shape, f.dtype) for f in found] == [(g.shape, g.dtype) for g in GS]


def test_what_is_small_stays_to_the_bit() -> None:
    for found, _ in both_ways(GS, 14.0):
        np.testing.assert_array_equal(flat(found), flat(GS))


def test_the_mean_comes_first() -> None:
    """Of micro-batches, before each limit."""
    for found, norm in both_ways(GS, 2.0, None, 4):
        np.testing.assert_allclose(
            flat(found), flat([0.25 * g for g in GS]) * 2 / (NORM / 4), rtol=1e-6
        )
        np.testing.assert_allclose(norm, NORM / 4, rtol=1e-6)
    for found, _ in both_ways(GS, 20.0, None, 4):
        np.testing.assert_array_equal(flat(found), 0.25 * flat(GS))
    for found, norm in both_ways(GS, None, 0.75, 4):
        np.testing.assert_array_equal(flat(found), [0.75, -0.75, 0, 0.75, 0.125, -0.5])
        np.testing.assert_allclose(norm, np.linalg.norm(flat(found)), rtol=1e-6)


def test_float16_neither_overflows_nor_vanishes() -> None:
    for found, norm in both_ways([np.full(10_000, 6e4, np.float16)], 1e4):
        assert found[0].dtype == np.float16
        np.testing.assert_allclose(norm, np.sqrt(1e4) * np.float16(6e4), rtol=1e-5)
        np.testing.assert_allclose(found[0], 100, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e30])
def test_no_norm_makes_no_step(bad: float) -> None:
    for found, norm in both_ways([np.float32([1, bad]), np.float32([2])], 1.0):
        assert np.isnan(flat(found)).all() and not np.isfinite(norm)


def test_by_value() -> None:
    g = np.float32([3, -4, np.nan, 0.5])
    graph = computed(lambda v: {"y": clip_by_value([v["g"]], 1.0)[0]}, {"g": g})["y"]
    for found in (graph, clip_by_value([g], 1.0, array_math)[0]):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, [1, -1, np.nan, 0.5])


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), "1", True])
@pytest.mark.parametrize("option", ["clip_value", "clip_norm"])
def test_limits_that_are_none(option: str, limit: Any) -> None:
    with pytest.raises(InputError, match=rf"{option} must be a (finite )?number"):
        step(**{option: limit})


@pytest.mark.torch
def test_any_gradients_as_pytorch() -> None:
    import torch

    def theirs(gs: list[Any], clip: Any, limit: float) -> tuple[Any, Any]:
        ps = [torch.zeros(g.shape, dtype=torch.tensor(g).dtype, requires_grad=True) for g in gs]
        for p, g in zip(ps, gs, strict=True):
            p.grad = torch.tensor(g)
        norm = clip(ps, limit)
        return flat([p.grad.numpy() for p in ps]), norm

    random = np.random.default_rng(0)
    cases = [(GS, 2.0)]
    for _ in range(20):
        shapes = [
            tuple(random.integers(1, 6, random.integers(0, 4)))
            for _ in range(random.integers(1, 5))
        ]
        cases.append(
            (
                [np.asarray(random.normal(0, 3, s), np.float32) for s in shapes],
                random.uniform(0.1, 20),
            )
        )
    for gs, limit in cases:
        expected, norm = theirs(gs, torch.nn.utils.clip_grad_norm_, limit)
        for found, own in both_ways(gs, limit):
            np.testing.assert_allclose(flat(found), expected, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(own, float(norm), rtol=1e-6)
        expected, _ = theirs(gs, torch.nn.utils.clip_grad_value_, limit)
        np.testing.assert_array_equal(flat(clip_by_value(gs, limit, array_math)), expected)
    np.testing.assert_allclose(
        theirs(GS, torch.nn.utils.clip_grad_norm_, 2.0)[0], CLIPPED, rtol=1e-6
    )
