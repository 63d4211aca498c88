"""The coverage of ensembles of trees: both ways of every node, and values at its threshold. LEQ and
LT differ at the threshold alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxgrad.verify.coverage.counters import (
    THRESHOLDS,
    Array,
    Attributes,
    Counter,
    Goal,
    Item,
)

TREES = {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_MOST_ROWS = 4096  # of the operand that one run follows through the trees
_MOST_GOALS = 1024  # rows that are made to reach nodes
_TRUE, _FALSE, _EQUAL = 1, 2, 4
_ORDERED = _TRUE | _FALSE | _EQUAL


@dataclass
class Forest:
    """The inner nodes of all trees. `yes` and `no` are the next nodes, or -1 at a leaf."""

    feature: Array
    value: Array
    mode: Array
    yes: Array
    no: Array
    roots: Array

    @classmethod
    def of(cls, attributes: Attributes) -> Forest:
        """Returns the trees of a node, by its attributes as the reference reads them."""
        return (_of_splits if "tree_roots" in attributes else _of_ids)(attributes)

    @property
    def needed(self) -> Array:
        """The set of ways for each node: nodes that compare for equality have two."""
        ordered = np.isin(self.mode, ("LEQ", "LT", "GTE", "GT"))
        return np.where(ordered, _ORDERED, _TRUE | _FALSE)

    def answers(self, nodes: Array, x: Array) -> Array:
        """Returns whether the condition of each node holds for the numbers."""
        value, mode = self.value[nodes], self.mode[nodes]
        conditions = {
            "LEQ": x <= value, "LT": x < value, "GTE": x >= value, "GT": x > value,
            "EQ": x == value, "NEQ": x != value,
        }  # fmt: skip
        return np.select([mode == m for m in conditions], list(conditions.values()), x == value)

    def walk(self, rows: Array) -> Array:
        """Returns the set of ways that rows of features took at each node."""
        seen = np.zeros(len(self.value), np.int64)
        at = np.tile(self.roots, (len(rows), 1))
        which = np.broadcast_to(np.arange(len(rows))[:, None], at.shape)
        which, at = which[at >= 0], at[at >= 0]
        for _ in range(len(self.value)):
            if not at.size:
                break
            x = rows[which, self.feature[at]]
            answer = self.answers(at, x)
            np.bitwise_or.at(seen, at, np.where(answer, _TRUE, _FALSE))
            np.bitwise_or.at(seen, at, np.where(x == self.value[at], _EQUAL, 0))
            at = np.where(answer, self.yes[at], self.no[at])
            which, at = which[at >= 0], at[at >= 0]
        return seen

    def rows(self, left: Array, features: int) -> Array:
        """Returns rows of features that take the `left` ways, NaN for features that may have any
        value.
        """
        parents = {int(self.yes[n]): (n, True) for n in range(len(self.yes)) if self.yes[n] >= 0}
        parents |= {int(self.no[n]): (n, False) for n in range(len(self.no)) if self.no[n] >= 0}
        found = []
        for node in np.flatnonzero(left):
            value = self.value[node]
            at = int(node)
            path: list[tuple[int, bool]] = []
            while at in parents and len(path) < 256:
                parent, answer = parents[at]
                path.append((parent, answer))
                at = parent
            for wanted in (value, np.nextafter(np.float32(value), np.float32(-np.inf)),
                           np.nextafter(np.float32(value), np.float32(np.inf)),
                           value - 1, value + 1):  # fmt: skip
                row = self._row(path, features, int(self.feature[node]), float(wanted))
                if row is not None:
                    found.append(row)
            if len(found) >= _MOST_GOALS:
                break
        return np.unique(np.array(found), axis=0) if found else np.zeros((0, features))

    def _row(
        self, path: Sequence[tuple[int, bool]], features: int, feature: int, wanted: float
    ) -> Array | None:
        """Returns a row that follows a path with a wanted value of one feature, None if there is
        none.
        """
        row = np.full(features, np.nan)
        row[feature] = wanted
        limits: dict[int, list[float]] = {}
        for node, answer in path:
            low, high = limits.setdefault(int(self.feature[node]), [-np.inf, np.inf])
            value, mode = float(self.value[node]), str(self.mode[node])
            if mode in ("EQ", "MEMBER", "NEQ"):
                same = answer == (mode != "NEQ")
                bounds = [value, value] if same else [low, high]
            elif (mode in ("LEQ", "LT")) == answer:
                bounds = [low, min(high, value)]
            else:
                bounds = [max(low, value), high]
            limits[int(self.feature[node])] = bounds
        for at, (low, high) in limits.items():
            if at != feature:
                row[at] = _between(low, high)
        for node, answer in path:
            x = row[int(self.feature[node])]
            if bool(self.answers(np.array([node]), np.array([x]))[0]) != answer:
                return None
        return row


def _between(low: float, high: float) -> float:
    if low == high:
        return low
    if np.isfinite(low) and np.isfinite(high):
        return (low + high) / 2
    return low + 1 if np.isfinite(low) else high - 1 if np.isfinite(high) else 0.0


def _of_ids(attributes: Mapping[str, Any]) -> Forest:
    """Returns the trees whose nodes are named by the ids of their tree and their node."""
    named = list(zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], strict=True))
    modes = [str(m).removeprefix("BRANCH_") for m in attributes["nodes_modes"]]
    values = attributes.get("nodes_values_as_tensor")
    values = attributes["nodes_values"] if values is None else values
    inner = [i for i, mode in enumerate(modes) if mode != "LEAF"]
    number = {named[i]: n for n, i in enumerate(inner)}
    first: dict[Any, int] = {}
    for i, (tree, _) in enumerate(named):
        first.setdefault(tree, i)

    def next_of(name: str) -> Array:
        ids = attributes[name]
        return np.array([number.get((named[i][0], ids[i]), -1) for i in inner], np.int64)

    return Forest(
        np.array([attributes["nodes_featureids"][i] for i in inner], np.int64),
        np.array([values[i] for i in inner], np.float64),
        np.array([modes[i] for i in inner], object),
        next_of("nodes_truenodeids"),
        next_of("nodes_falsenodeids"),
        np.array([number.get(named[i], -1) for i in first.values()], np.int64),
    )


def _of_splits(attributes: Mapping[str, Any]) -> Forest:
    """Returns the trees of a TreeEnsemble, whose leaves are a list of their own."""

    def next_of(way: str) -> Array:
        ids = np.asarray(attributes[f"nodes_{way}nodeids"], np.int64)
        leaf = np.asarray(attributes[f"nodes_{way}leafs"], bool)
        return np.where(leaf, -1, ids)

    modes = np.asarray(attributes["nodes_modes"]).astype(int)
    return Forest(
        np.asarray(attributes["nodes_featureids"], np.int64),
        np.asarray(attributes["nodes_splits"], np.float64),
        np.array([_MODES[m] if m < len(_MODES) else "MEMBER" for m in modes], object),
        next_of("true"),
        next_of("false"),
        np.asarray(attributes["tree_roots"], np.int64),
    )


class Trees(Counter):
    """The nodes of an ensemble of trees. A node is reached if rows took both of its ways, and, if
    it compares, if one had the value of its threshold.
    """

    def __init__(self, where: str, operand: str, scope: str) -> None:
        self.where, self.operand, self.scope = where, operand, scope
        self.forest: Forest | None = None
        self.seen: Array = np.zeros(0, np.int64)
        self.features = 0

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        if self.forest is None:
            self.forest = Forest.of(attributes)
            self.seen = np.zeros(len(self.forest.value), np.int64)
        x = np.asarray(operands[0], np.float64)
        rows = x.reshape(-1, x.shape[-1])[:_MOST_ROWS]
        self.features = x.shape[-1]
        self.seen = self.seen | self.forest.walk(rows)
        return not self._left().any()

    def _left(self) -> Array:
        if self.forest is None:
            return np.zeros(0, np.int64)
        return np.asarray(self.forest.needed & ~self.seen)

    def items(self) -> list[Item]:
        if self.forest is None:
            return [Item(THRESHOLDS, self.where, 0, 1, "did not run")]
        left = self._left()
        ways = int((left & (_TRUE | _FALSE) != 0).sum())
        equal = int((left & _EQUAL != 0).sum())
        words = [f"both ways of {ways:,} nodes"] if ways else []
        words += [f"the threshold of {equal:,} nodes"] if equal else []
        missing = f"never {' or '.join(words)}" if words else ""
        reached = int((left == 0).sum())
        sides = (self.seen * (left != 0)).astype(np.uint8).tobytes() if words else b""
        item = Item(THRESHOLDS, self.where, reached, len(left), missing, sides)
        return [item] if len(left) else []

    def goals(self) -> list[Goal]:
        if self.forest is None or not self._left().any():
            return []
        return [Goal(self.scope, self.operand, self.forest.rows(self._left(), self.features))]
