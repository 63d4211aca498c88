"""Trees: the ways that rows take, and rows that take the ways that are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.verify.coverage.trees import Forest, Trees

IDS: dict[str, Any] = {
    "nodes_treeids": [0] * 5,
    "nodes_nodeids": [0, 1, 2, 3, 4],
    "nodes_featureids": [0, 1, 0, 0, 0],
    "nodes_values": [0.5, -3.0, 0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 3, 0, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0],
}
SPLITS: dict[str, Any] = {
    "tree_roots": [0],
    "nodes_featureids": [0, 1],
    "nodes_splits": np.array([0.5, -3.0]),
    "nodes_modes": np.array([0, 3], np.uint8),
    "nodes_truenodeids": [1, 0],
    "nodes_trueleafs": [0, 1],
    "nodes_falsenodeids": [0, 1],
    "nodes_falseleafs": [1, 1],
}
BOTH = pytest.mark.parametrize("attributes", [IDS, SPLITS], ids=["ids", "splits"])


@BOTH
def test_ways_of_rows(attributes: Any) -> None:
    forest = Forest.of(attributes)
    ways = [forest.walk(np.array([row], float)).tolist() for row in ((0, 0), (0.5, -3), (9, 0))]
    assert ways == [[1, 1], [5, 6], [2, 0]]  # true 1, false 2, equal 4


@BOTH
def test_rows_that_take_all_ways(attributes: Any) -> None:
    forest = Forest.of(attributes)
    rows = np.nan_to_num(forest.rows(forest.needed, 2))
    assert forest.walk(rows).tolist() == [7, 7]
    assert forest.rows(np.zeros(2, int), 2).shape == (0, 2)


@BOTH
def test_a_node_is_reached_both_ways_and_at_its_threshold(attributes: Any) -> None:
    counter = Trees("TreeEnsemble → 'y'", "x", "")
    assert counter.items()[0].missing == "did not run"
    assert not counter.see(attributes, [np.array([[0.0, 0.0]])], [], 0)
    (item,) = counter.items()
    assert (item.reached, item.of) == (0, 2)
    assert item.missing == "never both ways of 2 nodes or the threshold of 2 nodes"
    (goal,) = counter.goals()
    assert counter.see(attributes, [np.nan_to_num(goal.wanted)], [], 0)
    assert [i.reached for i in counter.items()] == [2] and counter.goals() == []


def test_nodes_that_compare_for_equality_have_no_threshold() -> None:
    forest = Forest.of({**IDS, "nodes_modes": ["BRANCH_EQ", "BRANCH_NEQ", "LEAF", "LEAF", "LEAF"]})
    assert forest.needed.tolist() == [3, 3]
    assert forest.walk(np.nan_to_num(forest.rows(forest.needed, 2))).tolist() == [7, 7]
