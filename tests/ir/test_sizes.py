"""Sizes as expressions: texts in normal form, and each operation and question against numbers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxgrad.ir import sizes
from onnxgrad.ir.size_polynomials import compound
from onnxgrad.ir.sizes import Dim, dim_of

NAMES = ("B", "S", "x.0")


def value(d: int | str, env: dict[str, int]) -> int:
    """The number that Python makes of an expression."""
    if isinstance(d, int):
        return d
    names = {name.replace(".", "_"): n for name, n in env.items()}
    text = d.replace("x.0", "x_0")
    return int(eval(text, {"max": max, "min": min, "__builtins__": {}}, names))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("batch", "batch"),
        ("1 + past", "past + 1"),
        ("seq+past", "past + seq"),
        ("2*s0*3", "6*s0"),
        ("(s0//2)", "s0//2"),
        ("floor(s0/2)", "s0//2"),
        ("4*(s0//2)", "4*(s0//2)"),
        ("Max(1, s0)", "max(s0, 1)"),
        ("max(s0, s0 + 1)", "s0 + 1"),
        ("s0*(s1 + 1) - s0", "s0*s1"),
        ("((h + 1)//2 + 1)//2", "(h + 3)//4"),
        ("(6*a + 4)//2", "3*a + 2"),
        ("(a*b)//a", "b"),
        ("x.0 + x.0", "2*x.0"),
        # names, of which no operator is read
        ("batch-size", "batch-size"),
        ("a b", "a b"),
        ("seq + ", "seq + "),
        ("s0**2", "s0**2"),
        ("/Gather_output_0.1", "/Gather_output_0.1"),
        ("max", "max"),
        ("(a - 5)//2", "(a - 5)//2"),  # rounded down or to zero?
        ("2x", "2x"),
        ("s - s", "s - s"),
        # numbers name nothing
        ("-1", None),
        ("3", None),
    ],
)
def test_what_files_write_in_normal_form(text: str, normal: str | None) -> None:
    assert dim_of(text) == normal


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (sizes.add("a b", 1), "'a b' + 1"),
        (sizes.multiply("batch-size", 2), "2*'batch-size'"),
        (sizes.add("it's", 1), None),
        (sizes.subtract(0, sizes.divide("B", 2)), "-(B//2)"),
        (sizes.subtract(4, "S"), "4 - S"),
        (sizes.multiply("W", sizes.divide("H", 2)), "(H//2)*W"),
        (sizes.multiply(3, sizes.divide("H", 2)), "3*(H//2)"),
        (sizes.divide(sizes.multiply("a", 3), sizes.add("b", 1)), "(3*a)//(b + 1)"),
        (sizes.divide(sizes.minimum("N", 3), 2), "min(N, 3)//2"),
        (sizes.divide(sizes.product(["B", "S", 32]), sizes.product(["S", "B"])), 32),
        (sizes.divide(sizes.subtract("S", 1), 2), None),
        (sizes.divide("S", 0), None),
        (sizes.exactly("S", 2), None),
        (sizes.exactly(sizes.multiply("S", 6), 2), "3*S"),
        (sizes.maximum(0, sizes.subtract("H", 2)), "max(H - 2, 0)"),
        (sizes.maximum(sizes.subtract("a", "b"), sizes.subtract("b", "a")), None),
        (sizes.minimum(sizes.subtract("H", 2), 0), None),
        (sizes.remainder("S", 4), "S - 4*(S//4)"),
        (sizes.remainder(sizes.add(sizes.multiply("S", 4), 3), 4), 3),
        (sizes.product([]), 1),
        (sizes.product(["a"] * 40), None),  # no text may grow without end
        (sizes.add(None, 1), None),
        (sizes.multiply(None, 0), None),
    ],
)
def test_operations(found: Dim, text: Dim) -> None:
    assert found == text
    if isinstance(text, str):
        assert sizes.add(found, 0) == text  # read again


@pytest.mark.parametrize("divisor", range(1, 7))
@pytest.mark.parametrize("under", [1, 2, 3])
def test_every_small_linear_expression_divided(under: int, divisor: int) -> None:
    """(f (S // u) + n) // d and its remainder, against numbers."""
    for factor, more in itertools.product(range(7), range(6)):
        top = sizes.add(sizes.multiply(sizes.divide("S", under), factor), more)
        whole, rest = sizes.divide(top, divisor), sizes.remainder(top, divisor)
        assert whole is not None and rest is not None
        for s in (0, 1, 2, 5, 11, 12):
            number = factor * (s // under) + more
            assert value(whole, {"S": s}) == number // divisor
            assert value(rest, {"S": s}) == number % divisor


def test_questions() -> None:
    assert sizes.least(sizes.add("B", 2)) == 2
    assert sizes.least(sizes.subtract("B", 2)) == -2
    assert sizes.least(sizes.subtract(2, "B")) is None
    assert sizes.least(sizes.maximum("B", 3)) == 3
    assert sizes.at_least(sizes.multiply("S", 2), "S")
    assert not sizes.at_least("S", "B")
    assert sizes.differ("B", -1)
    assert not sizes.differ("B", 0)
    assert not sizes.differ("B", "S")
    assert sizes.symbols(sizes.multiply(sizes.divide("a", "b"), "c")) == {"a", "b", "c"}
    assert sizes.is_name("x.0")
    assert sizes.is_name("a b")
    assert not sizes.is_name("a//b")
    assert sizes.without(sizes.product(["B", "S", 4]), "S") == 0
    assert sizes.without(sizes.add("S", "B"), "S") == "B"
    assert sizes.without(sizes.divide("S", 2), "S") == 0
    assert sizes.without(sizes.divide("B", "S"), "S") is None
    assert sizes.without(sizes.maximum(sizes.divide("S", 2), 1), "S//2") == 1
    assert sizes.least(sizes.multiply("S", 3), 1) == 3
    assert sizes.least(sizes.maximum(sizes.divide("S", 2), sizes.minimum("S", 1)), 1) == 1
    assert compound("min(N, 3)//2") == ("//", "min(N, 3)", 2)


def test_sizes_that_broadcast() -> None:
    assert sizes.together("S", str(sizes.minimum("S", 64))) == "S"
    assert sizes.together(str(sizes.minimum("S", 1)), "S") is None  # 1 beside any S
    assert sizes.together("S", "B") is None
    assert sizes.together("S", str(sizes.add("B", 2))) == "B + 2"
    assert sizes.together("S", str(sizes.add("B", 1))) is None


# an operation on sizes, and on numbers; None for the divisor 0 and for what rounds differently
OPERATIONS: dict[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], Any]]] = {
    "add": (sizes.add, operator.add),
    "subtract": (sizes.subtract, operator.sub),
    "multiply": (sizes.multiply, operator.mul),
    "maximum": (sizes.maximum, max),
    "minimum": (sizes.minimum, min),
    "divide": (sizes.divide, lambda a, b: None if b == 0 else int(a / b)),
    "remainder": (sizes.remainder, lambda a, b: None if b == 0 else a - b * int(a / b)),
}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(OPERATIONS)),
            st.one_of(st.sampled_from(NAMES), st.integers(-2, 5)),
            st.integers(0, 5),
        ),
        min_size=1,
        max_size=7,
    ),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
def test_expressions_are_the_numbers_they_stand_for(
    steps: list[tuple[str, int | str, int]], numbers: list[int]
) -> None:
    env = dict(zip(NAMES, numbers, strict=True))
    made: list[tuple[Dim, int | None]] = [(name, env[name]) for name in NAMES]
    for name, other, which in steps:
        a, m = made[-1]
        b, n = made[which] if which < len(made) and name != "divide" else (other, value(other, env))
        on_sizes, on_numbers = OPERATIONS[name]
        number = None if m is None or n is None else on_numbers(m, n)
        made.append((on_sizes(a, b), number))
    for d, number in made:
        if d is None or number is None:
            continue
        assert value(d, env) == number
        if isinstance(d, str):
            assert sizes.add(dim_of(d), 0) in (d, None)
        low = sizes.least(d)
        assert low is None or low <= number
    for (d, m), (e, n) in itertools.pairwise(made):
        if m is None or n is None:
            continue
        assert not sizes.at_least(d, e) or m >= n
        assert not sizes.differ(d, e) or m != n
        if isinstance(d, str) and isinstance(e, str) and d != e and (m == n or 1 in (m, n)):
            both = sizes.together(d, e)
            assert both is None or value(both, env) == (n if m == 1 else m)
