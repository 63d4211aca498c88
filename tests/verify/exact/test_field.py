"""The field: primes, exact numbers, products and hashes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from onnxgrad.verify.exact.field import Field, ZeroDivisor


def test_primes_are_random_and_never_mersenne() -> None:
    drawn = [p for seed in range(8) for p in Field(seed).primes]
    assert len(set(drawn)) == len(drawn) == 32
    for p in drawn:
        assert 2**30 < p < 2**31 - 1 and p & (p + 1)
        assert all(p % q for q in range(3, 200, 2))


@pytest.mark.parametrize("x", [0.1, -1e-45, 3.4e38, 2.0**-149, -5e-324, 1.7e308, 12345678.9])
def test_a_float_is_its_exact_rational(x: float) -> None:
    ring, exact = Field(2), Fraction(x)
    for p, part in zip(ring.primes, ring.embed(np.array([x])), strict=True):
        assert int(part[0]) == exact.numerator * pow(exact.denominator, -1, p) % p


def test_products_are_exact() -> None:
    ring = Field(3)
    rng = np.random.default_rng(0)
    for i, p in enumerate(ring.primes):
        a, b = rng.integers(0, p, (3, 700)), rng.integers(0, p, (700, 2))
        expected = np.asarray((a.astype(object) @ b.astype(object)) % p, np.int64)
        assert np.array_equal(ring.matmul(i, a, b), expected)


def test_inverses_and_roots() -> None:
    ring = Field(4, roots=(2, 5))
    a = np.arange(1, 50)
    for i, p in enumerate(ring.primes):
        assert np.all(a * ring.inverse(i, a) % p == 1)
        for n in (2, 5):
            found = ring.root(n)
            assert found is not None and int(found[i]) ** 2 % p == n
    with pytest.raises(ZeroDivisor):
        ring.inverse(0, np.array([1, 0]))


def test_functions_depend_on_every_operand_and_the_key() -> None:
    ring = Field(5)
    x = ring.embed(np.array([1.0, 2.0, 1.0]))
    f, again, g = ring.function("f", [x]), ring.function("f", [x]), ring.function("g", [x])
    assert np.array_equal(f[0], again[0]) and f[0][0] == f[0][2] != f[0][1]
    assert not np.any(f[0] == g[0]) and not np.any(f[0] == Field(6).function("f", [x])[0])
    swapped = ring.embed(np.array([2.0, 1.0, 1.0]))
    assert not np.array_equal(ring.digest(x, [0])[0], ring.digest(swapped, [0])[0])


def test_the_bound_counts_elements_and_degrees() -> None:
    ring = Field(7)
    assert ring.bound(10, 2) == pytest.approx(10 * (2 / 2**30) ** 4)
    assert ring.bound(10, 1 << 40) == 1.0
