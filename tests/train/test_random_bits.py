"""The hash of counters: uniform, independent of place, user and seed, and the same in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_bytes
from onnxgrad.ir.types import TensorType
from onnxgrad.train.random_bits import bits_like, keys
from onnxgrad.verify.running.run import run

USERS = 3
COUNT = 1 << 16


@pytest.fixture(scope="module")
def drawing() -> Any:
    """Bits of three users for each seed."""
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info("x", 1, ["N"])], [])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    program = load(made)
    block = program.main
    seed = block.add_input("seed", TensorType(TensorProto.INT64, ()))
    with emitting(block, share=True):
        for key in keys(seed, USERS):
            block.add_output(bits_like(block.inputs[0], key))
    data, x = to_bytes(program), np.zeros(COUNT, np.float32)

    def draw(seed: int) -> Any:
        found = run(data, {"x": x, "seed": np.array(seed)})
        return np.stack(list(found.values()))

    return draw


def mixed(x: Any) -> Any:
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
        x = (x ^ (x >> shift)) * np.uint32(factor)
    return x ^ (x >> 14)


def by_numpy(seed: int) -> Any:
    """The same by numpy, for another runtime to be held to."""
    low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32 & 0xFFFFFFFF)
    of_seed = mixed(mixed(np.array([0x243F6A88, 0x85A308D3], np.uint32) ^ low) ^ high)
    found = []
    for user in range(1, USERS + 1):
        first, second = mixed(of_seed + np.uint32(user * 0x9E3779B9 & 0xFFFFFFFF))
        h = np.arange(COUNT, dtype=np.uint32) + first
        h = (h ^ (h >> 16)) * np.uint32(0x21F0AAAD) + second
        found.append((h ^ (h >> 15)) * np.uint32(0xD35A2D97))
    return np.stack(found)


@pytest.mark.parametrize("seed", [0, 1, (1 << 32) + 1, (1 << 62) + 12345, -1])
def test_integers_wrap_around_as_in_numpy(drawing: Any, seed: int) -> None:
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(drawing(seed), by_numpy(seed))


def centred(bits: Any) -> Any:
    return bits / 2**32 - 0.5


SEEDS = [0, 1, 2, 1 << 32, (1 << 32) + 1, 7 << 32, (7 << 32) + 1000]


def test_numbers_are_uniform(drawing: Any) -> None:
    for seed in SEEDS:
        u = centred(drawing(seed))
        # 6 standard deviations
        assert (np.abs(u.mean(1)) < 6 * np.sqrt(1 / 12 / COUNT)).all()
        assert (np.abs(u.var(1) - 1 / 12) < 6 * np.sqrt(1 / 180 / COUNT)).all()
        counts = np.stack([np.histogram(row, 256, (-0.5, 0.5))[0] for row in u])
        chi2 = ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum(1)
        assert (np.abs(chi2 - 255) < 6 * np.sqrt(2 * 255)).all()


def test_places_are_independent(drawing: Any) -> None:
    lags = [*range(1, 33), *(1 << k for k in range(6, 15)), 768, 3072, 1023, 1025]
    for seed in SEEDS:
        for row in centred(drawing(seed)):
            for lag in lags:
                c = 12 * (row[:-lag] * row[lag:]).mean()
                assert abs(c) < 6 / np.sqrt(COUNT - lag), (seed, lag)


def test_masks_of_neighbours_are_independent(drawing: Any) -> None:
    """Dropped together: pairs and triples at a ratio of 0.1 are as frequent as by chance."""
    for seed in SEEDS:
        for row in drawing(seed) < 0.1 * 2**32:
            for size in (2, 3, 4):
                together = np.logical_and.reduce([row[i : COUNT - size + i] for i in range(size)])
                p = 0.1**size
                assert abs(together.mean() - p) < 7 * np.sqrt(size * p / COUNT)


def test_users_and_seeds_are_independent(drawing: Any) -> None:
    rows = np.concatenate([centred(drawing(seed)) for seed in SEEDS])
    correlation = 12 * rows @ rows.T / COUNT
    off = correlation[~np.eye(len(rows), dtype=bool)]
    assert np.abs(off).max() < 6 / np.sqrt(COUNT)
    # nor is one a shifted copy of another
    for shift in (1, 2, 64, 1000):
        moved = 12 * rows[:, shift:] @ rows[:, :-shift].T / COUNT
        assert np.abs(moved).max() < 6.5 / np.sqrt(COUNT)


def test_the_high_bits_all_differ_between_seeds(drawing: Any) -> None:
    """Each of the upper 16 bits is one in half of the numbers, and flips with the seed in half of
    the places.
    """
    a, b = drawing(41), drawing(42)
    for bit in range(16, 32):
        for row in (*a, *(a ^ b)):
            assert abs((row >> bit & 1).mean() - 0.5) < 6 * 0.5 / np.sqrt(COUNT)
