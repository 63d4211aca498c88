"""Holds a share of the examples out of training, stratified by the classes of the labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.array_files import as_array, picked, read_npz
from onnxgrad.train.data import Arrays, without_unread
from onnxgrad.wording import option

# facts of a run: the share and the seed that chose the examples
SHARE, SEED = "share held out", "seed of the held-out share"
_STREAM = 1  # apart from the order of the examples, which has the same seed


def split(
    data: Any, share: float, seed: int, inputs: Collection[str], labels: Collection[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns the examples to train and those held out. Rows are read when they are indexed.

    inputs: the arrays that the step reads; others are only among those held out, for metrics.
    labels: arrays that only the loss reads. The first of them with one integer for each example
    decides the classes. Raises InputError for data other than arrays by name.
    """
    if isinstance(data, (str, PathLike)):
        data = without_unread(read_npz(Path(data)), inputs, str(data))
    if not isinstance(data, Mapping):
        raise InputError(
            f"{option('--validation', 'validation=')}{share:g} needs data that is arrays by name, "
            f"not {type(data).__name__}: pass batches of held-out data"
        )
    arrays = {name: as_array(a) for name, a in data.items()}
    count = Arrays(arrays, 1).examples
    if count < 2:
        raise InputError(f"no share of {count} example can be held out")
    of_class = next((arrays[k] for k in labels if k in arrays and _are_classes(arrays[k])), None)
    rows = _rows(count, share, seed, of_class)
    others = np.setdiff1d(np.arange(count), rows)
    all_there = arrays.keys() >= {*inputs}  # otherwise the error shows a misspelt name
    read = {name: a for name, a in arrays.items() if name in inputs or not all_there}
    return picked(read, others), picked(arrays, rows)


def _are_classes(labels: Array) -> bool:
    return labels.dtype.kind in "iub" and int(np.prod(labels.shape[1:])) == 1


def _rows(count: int, share: float, seed: int, labels: Array | None) -> Array:
    """Returns the rows to hold out, in order. Each class has its share of them, up to rounding, and
    stays in the training data.
    """
    draws = np.random.default_rng([seed, _STREAM])
    order = draws.permutation(count)
    total = min(max(round(share * count), 1), count - 1)
    if labels is None:
        return np.sort(order[:total])
    _, which, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    exact = total * sizes / count
    taken = exact.astype(np.int64)
    # the largest remainders are rounded up; ties at random; no class is taken wholly if others can
    first = np.lexsort((draws.permutation(len(sizes)), taken - exact, taken + 1 >= sizes))
    taken[first[: total - taken.sum()]] += 1
    by_class = order[np.argsort(which.reshape(-1)[order], kind="stable")]
    place = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(by_class[place < np.repeat(taken, sizes)])
