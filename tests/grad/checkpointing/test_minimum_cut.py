"""The minimum cut against all cuts of small random networks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from onnxgrad.grad.checkpointing.minimum_cut import UNLIMITED, Network


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_is_smaller_and_none_as_small_is_nearer_to_the_sink(seed: int) -> None:
    rng, network, nodes = np.random.default_rng(seed), Network(), [*"abcde"]
    edges = []
    for tail, head in itertools.permutations(["source", *nodes, "sink"], 2):
        if head != "source" and tail != "sink" and rng.random() < 0.5:
            capacity = UNLIMITED if rng.random() < 0.1 else int(rng.integers(0, 6))
            edges.append((tail, head, capacity))
            network.add(tail, head, capacity)
    found, best = network.cut("source", "sink"), []
    for sides in itertools.product((False, True), repeat=len(nodes)):
        side = {"sink", *itertools.compress(nodes, sides)}
        size = sum(c for tail, head, c in edges if tail not in side and head in side)
        best.append((size, len(side), side))
    size, _, side = min(best, key=lambda entry: entry[:2])
    assert found == (None if size >= UNLIMITED else side)


def test_a_long_chain_needs_no_recursion() -> None:
    network = Network()
    for i in range(20_000):
        network.add(i, i + 1, 7 if i != 12_345 else 3)
    side = network.cut(0, 20_000)
    assert side is not None and 12_346 in side and 12_345 not in side
