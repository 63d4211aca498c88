"""Broadcasting is undone: which axes are summed over, decided beforehand or at run time, and what cannot fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.grad.unbroadcast import contradict, fit, reduced_axes
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.types import SequenceType, TensorType
from tests.helpers import parse
from tests.rewriting import emitted


@pytest.mark.parametrize(
    ("source", "wanted", "axes"),
    [
        ((2, 3), (2, 3), ()),
        ((2, 3), (3,), (0,)),
        ((2, 3), (1, 3), (0,)),
        ((4, 2, 3), (2, 1), (0, 2)),
        ((2, 3), (), (0, 1)),
        (("N", 3), ("N", 3), ()),
        (("N", 3), (1, 3), (0,)),
        (("N", 3), (3,), (0,)),
        ((None, 3), (1, 3), (0,)),
        ((1, 3), (1, 3), ()),
        ((1, 3), ("N", 3), ()),
        (("N", 3), ("M", 3), "undecided"),
        (("N", 3), (None, 3), "undecided"),
        ((None,), (None,), "undecided"),
        (None, (3,), "undecided"),
        ((3,), None, "undecided"),
        ((3,), (2, 3), "mismatch"),
        ((2, 3), (4, 3), "mismatch"),
        (("N", 2), ("M", 3), "mismatch"),
    ],
)
def test_the_axes_to_sum_over(source: Any, wanted: Any, axes: Any) -> None:
    assert reduced_axes(source, wanted) == axes


def fitted(
    partial: str, operand: str, feeds: dict[str, Any], *, broadcasts: bool = True
) -> tuple[Any, list[str]]:
    """The partial made to fit the operand, and the operators that it took."""
    model = parse(f"g ({partial} p, {operand} x) => (float[] y) {{ y = Add(p, x) }}")
    ops: list[str] = []

    def build(v: dict[str, Any]) -> list[Any]:
        block = v["p"].block
        before = set(block.bindings)
        found = fit(v["p"], v["x"], "Rule", broadcasts, v["y"].definition, 1)
        assert found.dtype == v["x"].dtype
        ops.extend(b.op for b in block.bindings if b not in before)
        return [found]

    (value,) = emitted(model, build, feeds)
    return value, ops


@pytest.mark.parametrize(
    ("partial", "operand", "shape", "wanted", "ops"),
    [
        ("float[2,3]", "float[2,3]", (2, 3), (2, 3), []),
        ("float[2,3]", "float[3]", (2, 3), (3,), ["ConstantOfShape", "MatMul"]),
        ("float[4,2,3]", "float[3]", (4, 2, 3), (3,), ["Reshape", "ConstantOfShape", "MatMul"]),
        (
            "float[4,2,3]",
            "float[2,3]",
            (4, 2, 3),
            (2, 3),
            ["Reshape", "ConstantOfShape", "MatMul", "Reshape"],
        ),
        ("double[2,3]", "double[3]", (2, 3), (3,), ["ReduceSum"]),
        ("float[1,3]", "float[3]", (1, 3), (3,), ["ReduceSum"]),
        ("float[2,0]", "float[0]", (2, 0), (0,), ["ReduceSum"]),
        ("float[0,3]", "float[3]", (0, 3), (3,), ["ReduceSum"]),
        ("float[N,3]", "float[3]", (5, 3), (3,), ["ReduceSum"]),
        ("float[2,3]", "float[1,3]", (2, 3), (1, 3), ["ReduceSum"]),
        ("float[4,2,3]", "float[2,1]", (4, 2, 3), (2, 1), ["ReduceSum", "Squeeze"]),
        ("float[2,3]", "float", (2, 3), (), ["ReduceSum"]),
        ("float[N,3]", "float[1,3]", (5, 3), (1, 3), ["ReduceSum"]),
        ("float[N,3]", "float[N,3]", (5, 3), (5, 3), []),
    ],
)
def test_decided_beforehand(
    partial: str, operand: str, shape: tuple[int, ...], wanted: tuple[int, ...], ops: list[str]
) -> None:
    p = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found, emitted_ops = fitted(partial, operand, {"p": p, "x": np.zeros(wanted, np.float32)})
    np.testing.assert_array_equal(found, summed_to(p, wanted))
    assert emitted_ops == ops


def summed_to(p: Any, wanted: tuple[int, ...]) -> Any:
    """What numpy's broadcasting of `wanted` to the shape of p is undone to."""
    lead = p.ndim - len(wanted)
    axes = (*range(lead), *(i + lead for i, d in enumerate(wanted) if d == 1 != p.shape[i + lead]))
    return p.sum(axis=axes).reshape(wanted)


@pytest.mark.parametrize(
    ("partial", "operand", "cases"),
    [
        ("float[N,M]", "float[K,M]", [((4, 3), (1, 3)), ((4, 3), (4, 3)), ((1, 3), (1, 3))]),
        ("float[L,N,M]", "float[K,M]", [((2, 4, 3), (1, 3)), ((2, 4, 3), (4, 3))]),
        ("float[]", "float[]", [((2, 3), (3,)), ((2, 3), (2, 1)), ((3,), (3,)), ((2, 2), ())]),
        ("float[N,M]", "float[]", [((2, 3), (3,)), ((2, 3), (1, 1))]),
    ],
)
def test_decided_at_run_time(partial: str, operand: str, cases: list[Any]) -> None:
    for shape, wanted in cases:
        p = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        found, _ = fitted(partial, operand, {"p": p, "x": np.zeros(wanted, np.float32)})
        np.testing.assert_array_equal(found, summed_to(p, wanted))


def test_another_float_type_is_cast() -> None:
    found, ops = fitted(
        "double[2]", "float[2]", {"p": np.array([1.5, 2.5]), "x": np.zeros(2, np.float32)}
    )
    assert ops == ["Cast"] and found.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("partial", "operand", "broadcasts", "reason"),
    [
        ("int64[2]", "float[2]", True, "returned i64 for operand 1 at .* must be floating-point"),
        ("float[3]", "float[2]", True, r"Rule returned f32\[3\] for operand 1 of type f32\[2\]"),
        ("float[1,2]", "float[2]", False, "the shapes must be equal"),
        ("float[2]", "float[1]", False, "the shapes must be equal"),
    ],
)
def test_what_cannot_fit_names_the_rule(
    partial: str, operand: str, broadcasts: bool, reason: str
) -> None:
    block = load(parse(f"g ({partial} p, {operand} x) => (float[] y) {{ y = Neg(x) }}")).main
    binding = block.outputs[0].definition
    assert binding is not None
    with emitting(block), pytest.raises(InputError, match=reason):
        fit(*block.inputs, "Rule", broadcasts, binding, 1)


def test_without_broadcasting_unknown_sizes_are_believed() -> None:
    _, ops = fitted(
        "float[N,3]", "float[M,3]", {"p": np.ones((2, 3)), "x": np.ones((2, 3))}, broadcasts=False
    )
    assert ops == []


F32 = TensorType(1, (2, 3))


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        (F32, F32, False),
        (F32, TensorType(11, (2, 3)), True),
        (F32, TensorType(0, None), False),
        (F32, TensorType(1, ("N", 3)), False),
        (F32, TensorType(1, ("N", 4)), True),
        (F32, TensorType(1, (2,)), True),
        (F32, SequenceType(F32), False),
        (None, F32, False),
    ],
)
def test_types_of_which_no_tensor_is_both(a: Any, b: Any, answer: bool) -> None:
    assert contradict(a, b) is answer and contradict(b, a) is answer
