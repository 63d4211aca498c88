"""Weights for federated training: averages, and differences in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.ir.types import Array
from onnxgrad.jobs.training.values import check_alike
from onnxgrad.options import known_keywords
from onnxgrad.wording import counted

Values = Mapping[str, Array]
_MODEL, _EXAMPLES = "delta", "examples"


@known_keywords
def average(
    values: Sequence[Values | str | PathLike[str]], weights: Sequence[float] | None = None
) -> dict[str, Array]:
    """Returns the weighted mean of arrays by name, computed in float64, in their dtypes.

    values: the `parameters` or `state` of several trainers, or paths of checkpoints.
    weights: one number for each, at least 0, such as its number of examples. Defaults to equal
    weights.

    Integers, such as counters, must be equal. Raises InputError if names, shapes or dtypes differ,
    if a file cannot be read, or if the weights do not fit.
    """
    read = [_read(v) for v in values]
    if not read:
        raise InputError("average: values is empty")
    shares = _shares(weights, len(read))
    for i, other in enumerate(read[1:], 1):
        check_alike(other, read[0], f"average: values[{i}]")
    return {name: _mean(name, [v[name] for v in read], shares) for name in read[0]}


def _read(given: Values | str | PathLike[str]) -> Values:
    if isinstance(given, (str, PathLike)):
        return safetensors_file.read(Path(given))[0]
    return {name: np.asarray(a) for name, a in given.items()}


def _shares(weights: Sequence[float] | None, count: int) -> Array:
    given = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    if given.shape != (count,):
        raise InputError(f"average: {counted(count, 'set')} of values, but {given.size} weights")
    total = given.sum()
    if not ((given >= 0).all() and math.isfinite(total) and total > 0):
        raise InputError(
            f"average: the weights must be finite, at least 0 and not all 0, not {weights}"
        )
    return np.asarray(given / total)


def _mean(name: str, arrays: Sequence[Array], shares: Array) -> Array:
    first = np.asarray(arrays[0])
    if first.dtype.kind in "iub":
        if any(not np.array_equal(first, a) for a in arrays[1:]):
            raise InputError(f"average: '{name}' is {first.dtype} and differs: remove it")
        return np.array(first)
    total = np.zeros(first.shape)
    for share, a in zip(shares, arrays, strict=True):
        total += share * a.astype(np.float64)
    return total.astype(first.dtype)


@frozen
class Delta:
    """The change of weights by training.

    values: the differences by name.
    examples: the number of examples that the training read.
    model: the digest of the model.
    """

    values: Values
    examples: float
    model: str

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a safetensors file. Raises InputError if it cannot be written."""
        words = {_MODEL: self.model, _EXAMPLES: repr(float(self.examples))}
        safetensors_file.write(Path(path), self.values, words)

    @staticmethod
    def mean(deltas: Sequence[Delta | str | PathLike[str]], model: str) -> dict[str, Array]:
        """Returns the mean of deltas of a model, weighted by their examples. Raises InputError for
        a delta of a different model, and as `average` does.
        """
        found = [d if isinstance(d, Delta) else read_delta(d) for d in deltas]
        for i, delta in enumerate(found):
            if delta.model != model:
                raise InputError(f"deltas[{i}] belongs to another model than this training step")
        return average([d.values for d in found], [d.examples for d in found])


@known_keywords
def read_delta(path: str | PathLike[str]) -> Delta:
    """Returns the delta that `Delta.save` wrote. Raises InputError if the file is missing, damaged
    or of another tool.
    """
    values, words = safetensors_file.read(Path(path))
    try:
        return Delta(values, float(words[_EXAMPLES]), words[_MODEL])
    except (KeyError, ValueError):
        raise InputError(f"{path} is not a delta written by Delta.save") from None
