"""Arithmetic modulo four random primes, and keyed hashes as uninterpreted functions.

A tensor is four arrays of residues below 2**31, which numpy multiplies in 64 bits. The primes, the
keys and the values of inputs are drawn together. No prime is a Mersenne prime: modulo 2**31 - 1,
2**31 is 1, so x * 2**-31 would equal x.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onnxgrad.errors import Unsupported

Array: TypeAlias = NDArray[Any]
Parts: TypeAlias = tuple[Array, ...]
_PRIMES = 4
_WITNESSES = (2, 3, 5, 7)  # of Miller and Rabin: these decide every number below 3.2e9
_EXPONENTS = 1200  # beyond those of float64, on both sides of 0
_INEXACT = 1 << 21  # terms of a sum of products of two 16-bit numbers that float64 holds exactly


class Undecided(Unsupported):
    """Exact evaluation cannot decide a graph. The message names the operator or the reason."""


class ZeroDivisor(Exception):
    """A divisor of this draw is zero."""


class OutOfRange(Exception):
    """An integer that the caller chooses is no valid index or size here. `limit`: the numbers that
    are valid, from 0 on.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


class Field:
    """One draw: four primes, with their keys. `roots`: integers that must have square roots modulo
    each prime.
    """

    exact_order: ClassVar[bool] = False  # whether elements can be compared

    def __init__(self, seed: object, roots: Sequence[int] = ()) -> None:
        self._seed = repr(seed)
        self.random = Random(f"field {self._seed}")
        self.primes = self._draw_primes(roots)
        self._powers = [_powers_of_two(p) for p in self.primes]
        self.hashed = 0

    def _draw_primes(self, roots: Sequence[int]) -> list[int]:
        found: list[int] = []
        while len(found) < _PRIMES:
            p = self.random.randrange(2**30 + 1, 2**31 - 1, 2)
            if p in found or (p + 1) & p == 0 or not _is_prime(p):
                continue
            if all(pow(n % p, (p - 1) // 2, p) == 1 for n in roots):
                found.append(p)
        return found

    # ---- numbers

    def embed(self, array: Array) -> Parts:
        """Returns finite numbers as exact rationals m * 2**e."""
        a = np.asarray(array)
        if a.dtype.kind in "iub":
            return tuple(np.asarray(a.astype(object) % p, np.int64) if a.dtype == np.uint64 else
                         np.mod(a.astype(np.int64), p) for p in self.primes)  # fmt: skip
        mantissa, exponent = np.frexp(a.astype(np.float64))
        whole = np.ldexp(mantissa, 53).astype(np.int64)
        at = exponent.astype(np.int64) - 53 + _EXPONENTS
        return tuple(
            np.mod(np.mod(whole, p) * powers[at], p)
            for p, powers in zip(self.primes, self._powers, strict=True)
        )

    def draw(self, shape: Sequence[int], key: str) -> Parts:
        """Returns uniform numbers for an input."""
        rng = np.random.default_rng(_number(self._seed, "draw", key))
        return tuple(rng.integers(0, p, tuple(shape)) for p in self.primes)

    def seed(self, key: str) -> int:
        """Returns a seed for other numbers of this draw."""
        return _number(self._seed, "seed", key)

    def reduce(self, i: int, array: Array) -> Array:
        return np.asarray(np.mod(array, self.primes[i]))

    def inverse(self, i: int, array: Array) -> Array:
        """Returns 1 / a. Raises ZeroDivisor."""
        p = self.primes[i]
        if not np.all(array):
            raise ZeroDivisor
        result, base, power = np.ones_like(array), array, p - 2
        while power:
            if power & 1:
                result = result * base % p
            base = base * base % p
            power >>= 1
        return result

    def matmul(self, i: int, a: Array, b: Array) -> Array:
        """Returns a @ b, exactly, by products of halves in float64."""
        p = self.primes[i]
        if a.shape[-1] >= _INEXACT:
            raise Undecided("a product with too many terms")
        high_a, low_a = (a >> 16).astype(np.float64), (a & 0xFFFF).astype(np.float64)
        high_b, low_b = (b >> 16).astype(np.float64), (b & 0xFFFF).astype(np.float64)

        # floats below 2**53, as is the sum
        middle = np.mod((high_a @ low_b + low_a @ high_b).astype(np.int64), p)
        high = np.mod((high_a @ high_b).astype(np.int64), p)
        low = (low_a @ low_b).astype(np.int64)
        return np.asarray(np.mod(high * ((1 << 32) % p) + middle * (1 << 16) + low, p))

    def root(self, n: int) -> Parts | None:
        """Returns the same square root of an integer at every call, or None if a prime has none."""
        found = []
        for p in self.primes:
            r = _root(n % p, p)
            if r is None:
                return None
            flip = _number(self._seed, "root", n, p) & 1
            found.append(np.array((p - r) % p if flip else r, np.int64))
        return tuple(found)

    def is_negative(self, parts: Parts) -> Array:
        """Returns a choice between each x and -x that does not depend on which of both is given."""
        return np.asarray(parts[0] > self.primes[0] // 2)

    # ---- uninterpreted functions

    def function(self, name: str, operands: Sequence[Parts]) -> Parts:
        """Returns an uninterpreted function of the elements of operands that broadcast."""
        rng = Random(f"{self._seed} {name} {len(operands)}")
        prints = []
        for i, p in enumerate(self.primes):
            total: Any = rng.randrange(1, p)
            for parts in operands:
                total = (total + parts[i] * rng.randrange(1, p)) % p
            prints.append(np.asarray(total).astype(np.uint64))
        self.hashed += prints[0].size
        keys = [np.uint64(rng.getrandbits(64)) for _ in range(4 + 2 * len(prints))]
        first = prints[0] | (prints[1] << np.uint64(32))
        second = prints[2] | (prints[3] << np.uint64(32))
        with np.errstate(over="ignore"):
            a = _mixed(_mixed(first ^ keys[0]) + second + keys[1])
            b = _mixed(_mixed(second ^ keys[2]) + first + keys[3])
            return tuple(
                np.asarray(
                    _mixed(_mixed(a ^ keys[4 + 2 * i]) + b + keys[5 + 2 * i]) % np.uint64(p)
                ).astype(np.int64)
                for i, p in enumerate(self.primes)
            )

    def digest(self, parts: Parts, axes: Sequence[int]) -> Parts:
        """Returns one number for all elements along `axes`, which stay with size 1."""
        found = []
        for i, p in enumerate(self.primes):
            a = parts[i]
            shape = [a.shape[k] if k in axes else 1 for k in range(a.ndim)]
            rng = np.random.default_rng(_number(self._seed, "digest", *shape, i))
            keyed = a * rng.integers(1, p, shape) % p
            found.append(np.asarray(keyed.sum(axis=tuple(axes), keepdims=True) % p))
        return tuple(found)

    def bound(self, elements: int, degree: int) -> float:
        """Returns an upper bound of the chance that different algebra gave equal elements."""
        return min(1.0, (elements + self.hashed) * min(degree / 2**30, 1.0) ** _PRIMES)


def _powers_of_two(p: int) -> Array:
    """Returns 2**e modulo p, for e from -_EXPONENTS on."""
    found = np.array([pow(2, -_EXPONENTS, p)], np.int64)
    while len(found) < 2 * _EXPONENTS:
        found = np.concatenate([found, found * pow(2, len(found), p) % p])
    return found[: 2 * _EXPONENTS]


def _mixed(x: Array) -> Array:
    """Mixes 64-bit words (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _number(*key: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")


def _is_prime(n: int) -> bool:
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for a in _WITNESSES:
        x = pow(a, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def _root(n: int, p: int) -> int | None:
    """Returns a square root of n modulo p (Tonelli and Shanks), or None."""
    if n == 0:
        return 0
    if pow(n, (p - 1) // 2, p) != 1:
        return None
    odd, twos = p - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    z = next(z for z in range(2, p) if pow(z, (p - 1) // 2, p) == p - 1)
    m, c, t, r = twos, pow(z, odd, p), pow(n, odd, p), pow(n, (odd + 1) // 2, p)
    while t != 1:
        i, square = 0, t
        while square != 1:
            square, i = square * square % p, i + 1
        b = pow(c, 1 << (m - i - 1), p)
        m, c = i, b * b % p
        t, r = t * c % p, r * b % p
    return r
