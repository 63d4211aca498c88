"""Sizes as expressions: sums, products, floor divisions, maxima and minima of symbols and numbers.

A size is an int, the text of an expression in normal form, or None (unknown). Equal texts are equal
expressions. A shape thus stays a tuple of numbers and texts, and an expression passes through a
`dim_param` unchanged. A symbol stands for a number that is at least 0. An operation without a
normal form returns None.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, reduce

from onnxgrad.ir.size_polynomials import (
    KNOWN,
    compound,
    dim,
    extreme,
    least_of,
    product_of,
    quotient,
    ratio,
    sum_of,
    terms,
)
from onnxgrad.ir.size_polynomials import Dim as Dim
from onnxgrad.ir.size_polynomials import dim_of as dim_of

# most terms of a product before equal terms are added up
_MOST_PRODUCTS = 100


@lru_cache(maxsize=KNOWN)
def add(a: Dim, b: Dim) -> Dim:
    """a + b"""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return None if a is None or b is None else dim(sum_of(terms(a), terms(b)))


@lru_cache(maxsize=KNOWN)
def subtract(a: Dim, b: Dim) -> Dim:
    """Returns a - b, which may be negative."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return None if a is None or b is None else dim(sum_of(terms(a), terms(b), -1))


@lru_cache(maxsize=KNOWN)
def multiply(a: Dim, b: Dim) -> Dim:
    """a b"""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    if a is None or b is None:
        return None
    left, right = terms(a), terms(b)
    return None if len(left) * len(right) > _MOST_PRODUCTS else dim(product_of(left, right))


def product(sizes: Iterable[Dim]) -> Dim:
    """The product of all sizes, 1 if there are none."""
    return reduce(multiply, [1, *sizes])


@lru_cache(maxsize=KNOWN)
def divide(a: Dim, b: Dim) -> Dim:
    """Returns a / b if b divides a as an expression, and the floor of it if neither is negative;
    else None. A run with b = 0 fails.
    """
    if a is None or b is None or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int) and a >= 0 and b > 0:
        return a // b
    return dim(quotient(terms(a), terms(b)))


@lru_cache(maxsize=KNOWN)
def exactly(a: Dim, b: Dim) -> Dim:
    """Returns a / b if b divides a as an expression, else None."""
    return None if a is None or b is None else dim(ratio(terms(a), terms(b)))


def remainder(a: Dim, b: Dim) -> Dim:
    """Returns a - b (a // b) for a size and a divisor that are not negative."""
    return None if (least(a) or 0) < 0 else subtract(a, multiply(b, divide(a, b)))


@lru_cache(maxsize=KNOWN)
def maximum(a: Dim, b: Dim) -> Dim:
    """Returns the larger of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return None if a is None or b is None else dim(extreme("max", terms(a), terms(b)))


@lru_cache(maxsize=KNOWN)
def minimum(a: Dim, b: Dim) -> Dim:
    """Returns the smaller of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return None if a is None or b is None else dim(extreme("min", terms(a), terms(b)))


# ---- questions -----------------------------------------------------------------------------------


@lru_cache(maxsize=KNOWN)
def least(d: Dim, names: int = 0) -> int | None:
    """Returns a lower bound of the size if each name is at least `names`, None if none follows."""
    if isinstance(d, int):
        return d
    return None if d is None else least_of(terms(d), names)


def at_least(a: Dim, b: Dim) -> bool:
    """Whether a >= b in every run."""
    if a is None or b is None:
        return False
    more = least(subtract(a, b))
    return more is not None and more >= 0


def differ(a: Dim, b: Dim) -> bool:
    """Whether a and b are different numbers in every run."""
    if a is None or b is None or a == b:
        return False
    up, down = least(subtract(a, b)), least(subtract(b, a))
    return (up is not None and up > 0) or (down is not None and down > 0)


@lru_cache(maxsize=KNOWN)
def together(a: str, b: str) -> Dim:
    """Returns the common size of two expressions if they are equal or one of them is 1. None if
    either may be the larger.
    """
    for d, other in ((a, b), (b, a)):
        if (least(d) or 0) > 1:
            return d
        parts = compound(other)
        if parts is not None and parts[0] == "min" and d in parts:
            limit = parts[2] if parts[1] == d else parts[1]
            if (least(limit) or 0) > 1:  # min(d, 64) is 1 only if d is
                return d
    return None


@lru_cache(maxsize=KNOWN)
def without(d: Dim, atom: str) -> Dim:
    """Returns the size if the atom is 0. None if that has no normal form."""
    if not isinstance(d, str):
        return d
    total: Dim = 0
    for atoms, c in terms(d).items():
        total = add(total, product([c, *(_atom_without(a, atom) for a in atoms)]))
    return total


def _atom_without(a: str, atom: str) -> Dim:
    parts = None if a == atom else compound(a)
    if parts is None:
        return 0 if a == atom else a
    return _OPERATIONS[parts[0]](*(without(p, atom) for p in parts[1:]))


_OPERATIONS = {"//": divide, "max": maximum, "min": minimum}


def factors(d: Dim) -> tuple[str, ...]:
    """The atoms of which one is 0 if the size is: those of a product, all of a sum. A sum with a
    difference has itself.
    """
    if not isinstance(d, str):
        return ()
    return tuple(dict.fromkeys(a for atoms in terms(d) for a in atoms))


@lru_cache(maxsize=KNOWN)
def symbols(d: Dim) -> frozenset[str]:
    """Returns the names in an expression."""
    found: set[str] = set()
    for atom in {a for atoms in terms(d) for a in atoms} if isinstance(d, str) else ():
        parts = compound(atom)
        found.update(*(symbols(p) for p in parts[1:])) if parts else found.add(atom)
    return frozenset(found)


def is_name(d: Dim) -> bool:
    """Whether the size is a single symbol."""
    return isinstance(d, str) and compound(d) is None and list(terms(d)) == [(d,)]
