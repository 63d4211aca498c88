"""Polynomials of sizes: the normal form of the expressions in `ir.sizes`, arithmetic, and texts.

An atom is a symbol, or an operation that is not a polynomial: `p//q`, `max(p, q)`, `min(p, q)`. It
is built only if it cannot be negative. A product of ordered atoms maps to its integer coefficient.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TypeAlias

Dim: TypeAlias = int | str | None
# the atoms of each product in order, and its coefficient; () is the number's key
Polynomial: TypeAlias = dict[tuple[str, ...], int]

_MOST_TERMS = 24
_MOST_FACTORS = 12
_LONGEST = 400
# texts remembered by each function
KNOWN = 1 << 14

_NAME = re.compile(r"[^\W\d][\w.:]*")
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>\d+)(?![\w.])|(?P<name>{_NAME.pattern})|'(?P<quoted>[^']+)'"
    r"|(?P<operator>//|[*/+(),]|(?:^|(?<=[(\s]))-))"
)
_MARKS = frozenset("+-*/() ,'")
_FUNCTIONS = frozenset({"max", "min", "floor"})


class NoFormula(Exception):
    """Raised if a text is a name, not a formula, or if its formula has no normal form."""


def sum_of(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """a + factor b"""
    found = dict(a)
    for atoms, c in b.items():
        found[atoms] = found.get(atoms, 0) + factor * c
        if not found[atoms]:
            del found[atoms]
    return found


def product_of(a: Polynomial, b: Polynomial) -> Polynomial:
    """a b"""
    found: Polynomial = {}
    for left, c in a.items():
        for right, d in b.items():
            found = sum_of(found, {tuple(sorted(left + right)): c * d})
    return found


def ratio(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Returns a / b if a quotient without a remainder is found, else None."""
    if not a or not b:
        return a if b else None
    if len(b) > 1:  # only a quotient of a single term is looked for
        one = ratio(dict([max(a.items())]), dict([max(b.items())]))
        return one if one is not None and product_of(one, b) == a else None
    ((divisor, number),) = b.items()
    found: Polynomial = {}
    for atoms, c in a.items():
        rest = list(atoms)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % number:
            return None
        found[tuple(rest)] = c // number
    return found


def quotient(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """a / b, exact or rounded down; None if either may be negative and b is not a factor of a."""
    found = ratio(a, b)
    if found is not None:
        return found
    # of a negative number, "rounded towards zero" and "rounded down" differ
    return _floor(a, b) if _is_natural(a) and _is_natural(b) else None


def _is_natural(p: Polynomial) -> bool:
    low = least_of(p)
    return low is not None and low >= 0


def _is_number(p: Polynomial) -> bool:
    return not any(p)


def _floor(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Returns a // b of operands that are not negative."""
    if not _is_number(b):
        return _atom("//", a, b)
    divisor = b[()]
    whole = {atoms: c // divisor for atoms, c in a.items() if c // divisor}
    left = {atoms: c % divisor for atoms, c in a.items() if c % divisor}
    number = left.pop((), 0)
    if not left:
        return whole
    common = math.gcd(divisor, *left.values())
    if common > 1:
        divisor, number = divisor // common, number // common
        left = {atoms: c // common for atoms, c in left.items()}
    inner = compound(next(iter(left))[0]) if list(left.values()) == [1] else None
    if inner is not None and len(next(iter(left))) == 1 and inner[0] == "//":
        below = terms(inner[2])
        if _is_number(below):  # (x // m + n) // d is (x + m n) // (m d)
            top = sum_of(terms(inner[1]), {(): below[()] * number} if number else {})
            rest = _floor(top, {(): below[()] * divisor})
            return None if rest is None else sum_of(whole, rest)
    top = sum_of(left, {(): number} if number else {})
    rest = top if divisor == 1 else _atom("//", top, {(): divisor})
    return None if rest is None else sum_of(whole, rest)


def extreme(which: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Returns the larger (`which` is "max") or smaller of two polynomials. None if neither is known
    to be larger and the result may be negative.
    """
    up, down = least_of(sum_of(a, b, -1)), least_of(sum_of(b, a, -1))
    if up is not None and up >= 0:
        return a if which == "max" else b
    if down is not None and down >= 0:
        return b if which == "max" else a
    floors = [f for f in (least_of(a), least_of(b)) if f is not None and f >= 0]
    if len(floors) < (1 if which == "max" else 2):
        return None
    return _atom(which, *sorted((a, b), key=lambda p: (_is_number(p), _text(p))))


def _atom(kind: str, a: Polynomial, b: Polynomial) -> Polynomial:
    if kind == "//":
        return {(f"{_operand(a)}//{_operand(b)}",): 1}
    return {(f"{kind}({_text(a)}, {_text(b)})",): 1}


def least_of(p: Polynomial, names: int = 0) -> int | None:
    """Returns a lower bound of the polynomial, None if a term is subtracted. Each name is at least
    `names`.
    """
    if any(c < 0 for atoms, c in p.items() if atoms):
        return None
    return sum(c * math.prod(_least_of_atom(a, names) for a in atoms) for atoms, c in p.items())


@lru_cache(maxsize=KNOWN)
def _least_of_atom(atom: str, names: int) -> int:
    parts = compound(atom)
    if parts is None or parts[0] == "//":
        return 0 if parts else names
    lows = (least_of(terms(p), names) for p in parts[1:] if p is not None)
    floors = [f for f in lows if f is not None]
    return max(0, max(floors) if parts[0] == "max" else min(floors))


# ---- texts ---------------------------------------------------------------------------------------


@lru_cache(maxsize=KNOWN)
def dim_of(text: str) -> Dim:
    """Returns the size that a `dim_param` names: a formula in its normal form, or a name as it is.
    None for a number, which names nothing.
    """
    if _MARKS.isdisjoint(text):
        return None if text.isdecimal() else text
    if "'" in text:
        return text
    found = dim(terms(text))
    return found if isinstance(found, str) else None


def dim(p: Polynomial | None) -> Dim:
    """Returns the size in its normal form. None for None and for polynomials that are too long."""
    if p is None or len(p) > _MOST_TERMS or any(len(atoms) > _MOST_FACTORS for atoms in p):
        return None
    if _is_number(p):
        return p.get((), 0)
    try:
        text = _text(p)
    except NoFormula:
        return None
    return text if len(text) <= _LONGEST else None


def terms(d: int | str) -> Polynomial:
    """The polynomial of a size. A text that is not a formula is one symbol."""
    if isinstance(d, int):
        return {(): d} if d else {}
    return _polynomial(d)


@lru_cache(maxsize=KNOWN)
def _polynomial(text: str) -> Polynomial:
    if _MARKS.isdisjoint(text):
        return {(text,): 1}
    try:
        return _Reader(text).formula()
    except NoFormula:
        return {(text,): 1}


@lru_cache(maxsize=KNOWN)
def compound(atom: str) -> tuple[str, int | str, int | str] | None:
    """Returns operator and operands of an atom, None if the atom is a name."""
    if _MARKS.isdisjoint(atom):
        return None
    try:
        return _Reader(atom).atom()
    except NoFormula:
        return None


def _text(p: Polynomial) -> str:
    if list(p.values()) == [1] and len(next(iter(p))) == 1:
        return next(iter(p))[0]
    found = ""
    # subtracted terms come later, and the number last
    for atoms, c in sorted(p.items(), key=lambda term: (term[1] < 0, not term[0], term[0])):
        factors = [str(abs(c))] if abs(c) != 1 or not atoms else []
        alone = len(atoms) == 1 and not factors and (c > 0 or bool(found))  # -(a//b) is not -a//b
        factors += [_factor(atom, alone=alone) for atom in atoms]
        sign = " - " if c < 0 else " + "
        found += (sign if found else sign.strip(" +")) + "*".join(factors)
    return found or "0"


def _factor(atom: str, *, alone: bool) -> str:
    parts = compound(atom)
    if parts is not None:
        return f"({atom})" if parts[0] == "//" and not alone else atom
    if _NAME.fullmatch(atom) and atom not in _FUNCTIONS:
        return atom
    if "'" in atom:
        raise NoFormula
    return f"'{atom}'"


def _operand(p: Polynomial) -> str:
    text = _text(p)
    if _is_number(p):
        return text
    single = list(p.values()) == [1] and len(next(iter(p))) == 1
    return _factor(text, alone=False) if single else f"({text})"


def _formula(p: Polynomial | None) -> Polynomial:
    if p is None or len(p) > _MOST_TERMS:
        raise NoFormula
    return p


class _Reader:
    """Parses a formula as exporters and `_text` write it. Raises NoFormula."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        text = text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or len(text) > _LONGEST or found.lastgroup is None:
                raise NoFormula
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        self.at = 0

    def formula(self) -> Polynomial:
        found = self._sum()
        if self.at < len(self.tokens) or not found:
            raise NoFormula
        return found

    def atom(self) -> tuple[str, int | str, int | str]:
        """Returns the operator and operands of a text that is one atom and not a name."""
        name, parts = self._peek(), []
        if name in _FUNCTIONS and self._is_call():
            parts = self._arguments()
        if self.at < len(self.tokens):
            self.at = 0
            name, parts = "//", [self._primary()]
            self._expect("//")
            parts.append(self._primary())
        found = [d for d in map(dim, parts) if d is not None]
        if self.at < len(self.tokens) or len(parts) != 2 or len(found) != 2:
            raise NoFormula
        return name, found[0], found[1]

    def _peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _take(self, *operators: str) -> str:
        if self.at == len(self.tokens) or self.tokens[self.at][0] != "operator":
            return ""
        text = self.tokens[self.at][1]
        if text not in operators:
            return ""
        self.at += 1
        return text

    def _sum(self) -> Polynomial:
        negative = bool(self._take("-"))
        found = self._product()
        if negative:
            found = {atoms: -c for atoms, c in found.items()}
        while sign := self._take("+", "-"):
            found = sum_of(found, self._product(), 1 if sign == "+" else -1)
        return found

    def _product(self) -> Polynomial:
        found = self._primary()
        while sign := self._take("*", "//", "/"):
            other = self._primary()
            found = _formula(product_of(found, other) if sign == "*" else quotient(found, other))
        return found

    def _primary(self) -> Polynomial:
        if self._take("("):
            found = self._sum()
            self._expect(")")
            return found
        if self.at == len(self.tokens):
            raise NoFormula
        kind, text = self.tokens[self.at]
        if kind == "name" and text.lower() in _FUNCTIONS and self._is_call():
            return self._call(text.lower())
        self.at += 1
        if kind == "number":
            return terms(int(text))
        if kind not in ("name", "quoted"):
            raise NoFormula
        return {(text,): 1}

    def _is_call(self) -> bool:
        return self.tokens[self.at + 1 : self.at + 2] == [("operator", "(")]

    def _call(self, name: str) -> Polynomial:
        parts = self._arguments()
        if name == "floor":
            if len(parts) != 1:
                raise NoFormula
            return parts[0]
        if len(parts) < 2:
            raise NoFormula
        found = parts[0]
        for part in parts[1:]:
            found = _formula(extreme(name, found, part))
        return found

    def _arguments(self) -> list[Polynomial]:
        self.at += 1
        self._expect("(")
        found = [self._sum()]
        while self._take(","):
            found.append(self._sum())
        self._expect(")")
        return found

    def _expect(self, operator: str) -> None:
        if not self._take(operator):
            raise NoFormula
