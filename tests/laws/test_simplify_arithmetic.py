"""Sums, products and signs in their shortest form, for values that the laws are about and for those they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.functions import optimize
from tests.rewriting import (
    apply,
    assert_same_bits,
    assert_same_results,
    model_of,
    rewritten,
    special,
)

NUMBERS = {
    "two": np.float32(2),
    "three": np.float32([3]),
    "one": np.float32(1),
    "big": np.float32(1e30),
}
NUMBERS |= {"small": np.float32(1e-30), "row": np.float32([1, 2, 3])}
EXACT = [
    ("t = Neg(x) y = Neg(t)", []),
    ("t = Neg(z) y = Add(x, t)", ["Sub"]),
    ("t = Neg(z) y = Add(t, x)", ["Sub"]),
    ("t = Neg(z) y = Sub(x, t)", ["Add"]),
]
ROUNDING = [
    ("t = Sub(x, z) y = Neg(t)", ["Sub"]),
    ("t = Div(one, z) y = Mul(x, t)", ["Div"]),
    ("t = Mul(x, two) y = Mul(t, three)", ["Mul"]),
    ("t = Mul(x, two) y = Div(t, three)", ["Mul"]),
    ("t = Mul(x, two) u = Mul(z, three) y = Mul(t, u)", ["Mul", "Mul"]),
    ("t = Neg(x) y = Mul(t, three)", ["Mul"]),
    ("t = Mul(x, two) y = Neg(t)", ["Mul"]),
    ("t = Add(x, two) y = Add(three, t)", ["Add"]),
    ("t = Mul(x, z) u = Mul(x, w) y = Add(t, u)", ["Add", "Mul"]),
    ("t = Sum(x, z) y = Sum(t, w)", ["Sum"]),
]
SAME = [
    "t = Mul(x, big) y = Mul(t, big)",  # the number would be infinite
    "t = Mul(x, small) y = Mul(t, small)",  # or nothing
    "t = Mul(x, row) y = Mul(t, row)",
    "t = Mul(x, z) u = Mul(x, w) p = Add(t, u) y = Mul(p, t)",
]


def simplified(
    body: str, type_: str = "float[2,3]", options: str = "{exact=false}", constants: Any = NUMBERS
) -> Any:
    text = f"g ({type_} x, {type_} z, {type_} w) => ({type_} o) {{ {body} o = Identity(y) }}"
    return rewritten(text, f"simplify-arithmetic{options}", constants)


@pytest.mark.parametrize(("body", "left"), [*EXACT, *ROUNDING])
def test_shorter(body: str, left: list[str]) -> None:
    done = simplified(body)
    assert done.ops == [*left, "Identity"]
    assert_same_results(done)


@pytest.mark.parametrize(("body", "left"), EXACT)
def test_signs_are_exact(body: str, left: list[str]) -> None:
    done = simplified(body, options="")
    assert done.ops == [*left, "Identity"]
    edges = np.array([[-0.0, 0.0, np.inf], [-np.inf, 3e38, 1e-45]], np.float32)
    for z in (edges, edges[::-1].copy(), np.roll(edges, 1, axis=1)):
        assert_same_bits(done, x=edges, z=z, w=edges) if not _nan(
            edges, z
        ) else assert_same_results(done)


def _nan(x: Any, z: Any) -> bool:
    """Whether inf - inf turns up, whose sign IEEE leaves open."""
    with np.errstate(all="ignore"):
        return bool(np.isnan(x + z).any() or np.isnan(x - z).any())


@pytest.mark.parametrize(("body", "left"), ROUNDING)
def test_what_rounds_waits_for_exact_false(body: str, left: list[str]) -> None:
    assert len(simplified(body, options="").ops) == body.count(" = ") + 1


@pytest.mark.parametrize("preset", ["clean", "default", "inference", "canonical"])
@pytest.mark.parametrize(
    ("body", "op"),
    [
        ("t = Neg(x) y = Neg(t)", "Relu"),
        ("t = Neg(x) y = Add(z, t)", "Sub"),
        ("t = Neg(x) y = Sub(z, t)", "Add"),
    ],
)
def test_signs_are_never_rounded_so_every_preset_but_training_has_them(
    body: str, op: str, preset: str
) -> None:
    text = f"g (float[2,N] x, float[2,N] z) => (float[2,N] o, float[2,N] p) {{ {body} o = Relu(y) p = Abs(z) }}"
    done = apply(text, preset=preset)
    assert op in done.ops and "Neg" not in done.ops
    # of a NaN alone the sign is another
    x, z = (
        np.nan_to_num(special(2, 30, seed=seed), posinf=np.inf, neginf=-np.inf) for seed in (0, 1)
    )
    assert_same_bits(done, x=x, z=np.where(np.isinf(x), np.float32(2), z))


def test_signs_before_opset_7_where_an_attribute_broadcasts() -> None:
    text = "g (float[2,3] x, float[3] z) => (float[2,3] o) { t = Neg(z) y = Add<broadcast=1>(x, t) o = Relu(y) }"
    assert rewritten(text, "merge-consecutive", opset=6, ir_version=3).ops == ["Neg", "Add", "Relu"]
    same = (
        "g (float[2,3] x, float[2,3] z) => (float[2,3] o) { t = Neg(z) y = Add(x, t) o = Relu(y) }"
    )
    assert rewritten(same, "merge-consecutive", opset=6, ir_version=3).ops == ["Sub", "Relu"]


@pytest.mark.parametrize("body", SAME)
def test_same(body: str) -> None:
    done = simplified(body)
    assert len(done.ops) == body.count(" = ") + 1


@pytest.mark.parametrize(
    "body", ["t = Div(one, z) y = Mul(x, t)", "t = Mul(x, two) y = Div(t, three)"]
)
def test_integer_division_rounds_on_the_way(body: str) -> None:
    done = simplified(
        body,
        "int32[2,3]",
        constants={k: np.int32(v) for k, v in (("one", 1), ("two", 2), ("three", 3))},
    )
    assert len(done.ops) == 3


def test_integers_wrap_the_same_way() -> None:
    numbers = {"two": np.int32(2**20), "three": np.int32(2**15)}
    for body in (
        "t = Mul(x, two) y = Mul(t, three)",
        "t = Add(x, two) y = Add(three, t)",
        "t = Neg(x) y = Mul(t, two)",
    ):
        done = simplified(body, "int32[2,3]", constants=numbers)
        assert len(done.ops) == 2
        x = np.array([[1, -1, 7], [2**31 - 1, -(2**31), 0]], np.int32)
        assert_same_bits(done, x=x, z=x, w=x)


ROW, COLUMN, WHOLE = np.ones(3), np.full((2, 1), 0.5), np.arange(1, 7).reshape(2, 3)


NAUGHT = np.array([0.0, 1, 1])
TINY = NAUGHT, np.array([1e-35, 1, 1])


@pytest.mark.parametrize(
    ("c", "d"),
    [(NAUGHT, NAUGHT), (ROW, ROW), (ROW, WHOLE), (WHOLE, COLUMN), (COLUMN, np.float64(2))],
)
@pytest.mark.parametrize("dtype", ["float16", "float", "double", "int32", "int64"])
def test_constants_added_in_a_row_are_added_at_once(c: Any, d: Any, dtype: str) -> None:
    kind = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    constants = {"c": c.astype(kind), "d": d.astype(kind)}
    text = f"g ({dtype}[N,3] x) => ({dtype}[2,3] o) {{ t = Add(x, c) o = Add(d, t) }}"
    done = rewritten(text, "simplify-arithmetic{exact=false}", constants)
    assert done.ops == ["Add"]
    assert_same_results(done, feeds={"x": np.arange(6).reshape(2, 3).astype(kind)})


@pytest.mark.parametrize(
    ("c", "d", "more"),
    [
        (ROW, COLUMN, ""),  # their sum would be larger than either
        (ROW, -ROW, ""),  # (x + c) - c is not x for large c
        (ROW * 3e38, ROW * 3e38, ""),
        (ROW, ROW, "p = Neg(c)"),
        # a sum so small that its digits are lost, one of its terms being 0 or none
        *((c, d, "") for c in TINY for d in TINY if c[0] or d[0]),
    ],
)
def test_constants_that_are_not_added_at_once(c: Any, d: Any, more: str) -> None:
    constants = {"c": c.astype(np.float32), "d": d.astype(np.float32)}
    output = ", float[3] p" if more else ""
    text = f"g (float[N,3] x) => (float[M,3] o{output}) {{ t = Add(x, c) o = Add(d, t) {more} }}"
    done = rewritten(text, "simplify-arithmetic{exact=false}", constants)
    assert done.count("Add") == 2


@pytest.mark.parametrize(
    "body",
    [
        "t = Neg(x) y = Mul(t, three)",
        "t = Neg(three) y = Mul(x, t)",
        "t = Add(x, two) y = Add(t, three)",
    ],
)
def test_a_number_with_an_axis_beside_a_scalar(body: str) -> None:
    done = rewritten(
        f"g (float x) => (float[1] o) {{ {body} o = Identity(y) }}",
        "simplify-arithmetic{exact=false}",
        NUMBERS,
    )
    assert len(done.ops) == 3
    assert_same_results(done)


def test_equal_computations_get_equal_graphs() -> None:
    text = "g (float[2,3] x) => (float[2,3] o) {{ {} o = Relu(u) }}"
    forms = (
        "t = Mul(x, two) u = Mul(t, three)",
        "t = Mul(x, three) u = Mul(two, t)",
        "u = Mul(six, x)",
    )
    models = [model_of(text.format(form), {**NUMBERS, "six": np.float32(6)}) for form in forms]
    found = [optimize(model, preset="canonical", verify=False) for model in models]
    assert [[n.op_type for n in m.graph.node] for m in found] == [["Mul", "Relu"]] * 3
