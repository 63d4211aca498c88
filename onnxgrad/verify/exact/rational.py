"""Exact rationals, for small graphs whose operators compare numbers: Max, Clip, ArgMax, Round.

The operations are those of `Field`, on one array of Python integers and fractions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any, ClassVar

import numpy as np

from onnxgrad.verify.exact.field import Array, Parts, Undecided, ZeroDivisor

# the share of elements that are drawn near the constants of the graph, with ties and zeros
_NEAR = 0.7
_LARGEST = 4000  # bits of a number, beyond which rationals cost too much
# bounds of functions; between them lie all their values. Others are as wide as inputs
_RANGES = {
    "Erf": (-1, 1), "Tanh": (-1, 1), "Sin": (-1, 1), "Cos": (-1, 1), "Sigmoid": (0, 1),
    "Atan": (-2, 2), "Asin": (-2, 2), "Acos": (0, 4),
}  # fmt: skip
_POSITIVE = ("Exp", "Sqrt", "Cosh")


class Rationals:
    """One draw of rational inputs. `near`: numbers at which the graph may change its course."""

    exact_order: ClassVar[bool] = True

    def __init__(self, seed: object, near: Sequence[Fraction] = ()) -> None:
        self._seed = repr(seed)
        self.random = Random(f"rationals {self._seed}")
        self.hashed = 0
        pool = [Fraction(i) for i in (0, 0, 1, -1, 2, -2, 3, -3)] + [
            Fraction(1, 2),
            Fraction(-5, 2),
        ]
        for n in near:
            pool += [n, -n, n + Fraction(1, 8), n - Fraction(1, 8), n + 1, n - 1]
        self._pool = pool

    def embed(self, array: Array) -> Parts:
        """Returns finite numbers as fractions."""
        a = np.asarray(array)
        if a.dtype.kind in "iub":
            return (_filled(a.shape, [Fraction(int(x)) for x in a.reshape(-1)]),)
        return (_filled(a.shape, [Fraction(float(x)) for x in a.reshape(-1)]),)

    def draw(self, shape: Sequence[int], key: str) -> Parts:
        """Returns numbers of both signs, many of them near the graph's constants."""
        rng = Random(f"{self._seed} draw {key}")
        scale = rng.choice((1, 1, 4, 100))
        count = int(np.prod(tuple(shape)))
        numbers = [self._anywhere(rng, scale) for _ in range(count)]
        return (_filled(shape, numbers),)

    def _anywhere(self, rng: Random, scale: int) -> Fraction:
        if rng.random() < _NEAR:
            return rng.choice(self._pool)
        return Fraction(rng.randrange(-800, 801) * scale, 100)

    def seed(self, key: str) -> int:
        """Returns a seed for other numbers of this draw."""
        return _number(self._seed, "seed", key)

    def reduce(self, i: int, array: Array) -> Array:
        return _of_objects(array)

    def inverse(self, i: int, array: Array) -> Array:
        """Returns 1 / a. Raises ZeroDivisor."""
        if any(x == 0 for x in array.reshape(-1)):
            raise ZeroDivisor
        return self.elementwise(lambda x: Fraction(1) / x, array)

    def matmul(self, i: int, a: Array, b: Array) -> Array:
        return _of_objects(np.matmul(a, b)) if a.shape[-1] else _zeros(a, b)

    def root(self, n: int) -> Parts | None:
        return None

    def is_negative(self, parts: Parts) -> Array:
        return np.asarray(parts[0] < 0, bool)

    def elementwise(self, function: Any, *arrays: Array) -> Array:
        """Returns a Python function of the elements of arrays that broadcast."""
        every = np.broadcast_arrays(*arrays)
        rows = zip(*(a.reshape(-1) for a in every), strict=True)
        return _filled(every[0].shape, [function(*xs) for xs in rows])

    def function(self, name: str, operands: Sequence[Parts]) -> Parts:
        """Returns an uninterpreted function of the elements of operands that broadcast."""
        short = name.partition(" ")[0]

        def value(*xs: Any) -> Fraction:
            h = _number(self._seed, name, *xs)
            if short in _RANGES:
                low, high = _RANGES[short]
                return low + (high - low) * Fraction(h % (2**20 + 1), 2**20)
            found = self._anywhere(Random(h), 4)
            return abs(found) or Fraction(1, 8) if short in _POSITIVE else found

        if not operands:
            operands = [self.embed(np.zeros((), np.int64))]
        result = self.elementwise(value, *(parts[0] for parts in operands))
        self.hashed += result.size
        return (result,)

    def digest(self, parts: Parts, axes: Sequence[int]) -> Parts:
        """Returns one number for all elements along `axes`, which stay with size 1."""
        a = parts[0]
        rest = [k for k in range(a.ndim) if k not in axes]
        moved = np.transpose(a, [*rest, *axes])
        rows = moved.reshape(int(np.prod([a.shape[k] for k in rest])), -1)
        out = np.empty(len(rows), object)
        out[:] = [Fraction(_number(self._seed, "digest", *row)) for row in rows]
        return (out.reshape([1 if k in axes else a.shape[k] for k in range(a.ndim)]),)

    def bound(self, elements: int, degree: int) -> float:
        """Returns the largest share of the inputs drawn here on which sides that agreed everywhere
        may differ, with 95 % confidence.
        """
        return min(1.0, 3 / max(elements, 1))


def _filled(shape: Sequence[int], numbers: list[Any]) -> Array:
    out = np.empty(len(numbers), object)
    out[:] = numbers
    return out.reshape(tuple(shape))


def _of_objects(array: Any) -> Array:
    a = np.asarray(array, object)
    if a.size and max((x.numerator.bit_length() for x in a.reshape(-1)), default=0) > _LARGEST:
        raise Undecided("rationals that grow too long")
    return a


def _zeros(a: Array, b: Array) -> Array:
    shape = np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape
    return np.full(shape, Fraction(0), object)


def _number(*key: Any) -> int:
    text = "\0".join(str(k) for k in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
