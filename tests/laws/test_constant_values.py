"""numpy's answer to constant operands is onnxruntime's, to the bit and the dtype, for every operator of evaluate.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgrad.ir.load import load
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.laws.constant_values import (
    _RULES,
    EPSILON,
    NORMAL,
    evaluate,
    product_of_zeros,
    reason_of_rounding,
    truncated,
)
from onnxgrad.verify import RunFailed, run
from tests.helpers import parse
from tests.rewriting import Done, apply, assert_same_results, model_of

RNG = np.random.default_rng(5)
NUMBERS = [np.float32, np.float64, np.int32, np.int64]
SPECIAL = [0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 1e-40, 3e38, 7.0]


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def numbers(dtype: Any, *shape: int) -> Any:
    if np.dtype(dtype).kind == "f":
        values = RNG.standard_normal(shape)
        flat = values.reshape(-1)
        flat[: len(SPECIAL)] = SPECIAL[: flat.size]
        with np.errstate(all="ignore"):
            return values.astype(dtype)
    if np.dtype(dtype) == bool:
        return RNG.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    values = (
        RNG.integers(-50, 50, shape).astype(dtype)
        if info.min < 0
        else RNG.integers(0, 50, shape).astype(dtype)
    )
    if values.size > 1:
        values.reshape(-1)[:2] = info.min, info.max
    return values


def answers(op: str, operands: list[Any], opset: int = 20, **attrs: Any) -> tuple[Any, Any]:
    """(evaluate's answer, onnxruntime's) to `op(operands)`, all of them constants."""
    names = ["" if o is None else f"c{i}" for i, o in enumerate(operands)]
    node = helper.make_node(op, names, ["y"], **attrs)
    constants = [numpy_helper.from_array(np.asarray(o), n) for o, n in zip(operands, names) if n]
    out = helper.make_empty_tensor_value_info("z")
    graph = helper.make_graph(
        [node, helper.make_node("Identity", ["y"], ["z"])], "g", [], [out], constants
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 19 else 10
    )
    block = load(model).main
    got = evaluate(next(iter(block.bindings)))
    out.type.tensor_type.elem_type = block.outputs[0].dtype
    graph.output[0].CopyFrom(out)
    model.graph.output[0].CopyFrom(out)
    try:
        want = run(model, {}, optimize=False)["z"]
    except RunFailed:
        want = None
    return got, want


def same(got: Any, want: Any) -> None:
    assert got is not None and want is not None
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.kind == "f":  # a NaN's sign and payload are the processor's business
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        got, want = (
            np.where(np.isnan(got), got.dtype.type(0), got),
            np.where(np.isnan(want), got.dtype.type(0), want),
        )
    assert got.tobytes() == want.tobytes()


ALL = [np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.int8, bool]
X = (2, 3, 4)


def cases() -> list[tuple[str, list[Any], dict[str, Any], int]]:
    found: list[tuple[str, list[Any], dict[str, Any], int]] = []

    def add(op: str, *operands: Any, opset: int = 20, **attrs: Any) -> None:
        found.append((op, list(operands), attrs, opset))

    for t in ALL:
        a = numbers(t, *X)
        add("Transpose", a, perm=[2, 0, 1])
        add("Transpose", a)
        add("Reshape", a, i64(0, -1))
        add("Reshape", a, i64(4, 6))
        add("Squeeze", numbers(t, 1, 3, 1), i64(0, -1))
        add("Squeeze", numbers(t, 1, 3, 1))
        add("Squeeze", numbers(t, 1, 3, 1), opset=11, axes=[2])
        add("Unsqueeze", a, i64(0, -1))
        add("Unsqueeze", a, i64(4, 0))
        add("Unsqueeze", a, opset=11, axes=[1])
        add("Concat", a, numbers(t, 2, 1, 4), axis=1)
        add("Concat", a, numbers(t, 2, 3, 0), axis=-1)
        add("Gather", a, i64(1, -1, 0), axis=2)
        add("Gather", a, np.array(1, np.int32), axis=0)
        add("Gather", a, np.array([[0, 2]], np.int64), axis=-2)
        add("Expand", numbers(t, 3, 1), i64(2, 1, 4))
        add("Expand", numbers(t, 3, 1), i64(1))
        if (
            t is not bool
        ):  # onnxruntime has no such kernel, and makes 0.0 of -0.0, where ONNX says to choose
            add("Where", np.array([[True], [False]]), numbers(t, 2, 3) + t(0), numbers(t, 3) + t(0))
        add("ConstantOfShape", i64(2, 3), value=numpy_helper.from_array(numbers(t, 1)))
    add("ConstantOfShape", i64(0, 3))
    add("ConstantOfShape", np.zeros(0, np.int64))
    add("Reshape", np.zeros((0, 3), np.float32), i64(3, 0), allowzero=1)
    a = numbers(np.float32, 5, 4)
    far = 2**63 - 1
    for start, end, step in [
        (0, 3, 1), (1, far, 2), (-1, -far, -1), (-1, -far - 1, -2), (3, -6, -1), (-9, 9, 1), (9, 0, -3), (2, 2, 1), (4, 1, 1),
        (-2, -4, -1), (0, far, 3), (-9, -far, -1),
    ]:  # fmt: skip
        add("Slice", a, i64(start), i64(end), i64(0), i64(step))
    add("Slice", a, i64(1, 1), i64(4, 3))
    add("Slice", a, i64(1), i64(3), i64(-1))
    add("Slice", a, i64(1), i64(3), None, i64(1))
    for s, t in [(np.int64, np.float32), (np.int64, np.int32), (np.int32, np.float64), (bool, np.float32), (bool, np.int64),
                 (np.uint8, np.int64), (np.float64, np.float32), (np.float32, np.float64), (np.int64, np.float64)]:  # fmt: skip
        add("Cast", numbers(s, 11), to=helper.np_dtype_to_tensor_dtype(np.dtype(t)))
    add("CastLike", numbers(np.float32, 3), numbers(np.float32, 1))
    add("Shape", a)
    add("Shape", a, start=-1)
    add("Shape", a, start=0, end=-1)
    add("Range", np.int64(2), np.int64(11), np.int64(3))
    add("Range", np.int32(5), np.int32(-5), np.int32(-2))
    add("Range", np.int64(5), np.int64(5), np.int64(1))
    for op in ("Add", "Sub", "Mul"):
        for t in NUMBERS:
            add(op, numbers(t, 3, 10), numbers(t, 10)[::-1].copy())
    for t in (np.float32, np.float64):
        add("Div", numbers(t, 3, 10), numbers(t, 10)[::-1].copy())
        add("Sqrt", numbers(t, 12))
    for t in NUMBERS:
        add("Neg", numbers(t, 12))
        for op in ("Equal", "Less", "Greater", "GreaterOrEqual", "LessOrEqual"):
            add(op, numbers(t, 3, 10), numbers(t, 10))
    add("Equal", numbers(bool, 5), numbers(bool, 5))
    add("Not", numbers(bool, 5))
    for op in ("And", "Or"):
        add(op, numbers(bool, 4, 5), numbers(bool, 5))
    return found


CASES = cases()


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "opset"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_as_onnxruntime(op: str, operands: list[Any], attrs: dict[str, Any], opset: int) -> None:
    same(*answers(op, operands, opset, **attrs))


def test_every_rule_has_a_case() -> None:
    assert {op for op, *_ in CASES} == set(_RULES)


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("Reshape", [np.zeros(6, np.float32), i64(4, -1)], {}),
        ("Gather", [np.zeros(3, np.float32), i64(3)], {}),
        ("Concat", [np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)], {"axis": 0}),
        ("Range", [np.int64(0), np.int64(5), np.int64(0)], {}),
    ],
)
def test_what_fails_at_run_time_has_no_value(
    op: str, operands: list[Any], attrs: dict[str, Any]
) -> None:
    got, want = answers(op, operands, **attrs)
    assert got is None and want is None


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("Exp", [numbers(np.float32, 3)], {}),
        ("Add", [numbers(np.float16, 3), numbers(np.float16, 3)], {}),
        ("Div", [i64(-7, 7), i64(2, -2)], {}),
        ("Cast", [np.array([1e30, -3.7], np.float32)], {"to": TensorProto.INT32}),
        ("Cast", [np.array([1.0005], np.float32)], {"to": TensorProto.FLOAT16}),
        ("Cast", [np.array(["1"], object)], {"to": TensorProto.FLOAT}),
        ("Squeeze", [numbers(np.float32, 1, 2), np.zeros(0, np.int64)], {}),
        ("Range", [np.float32(0), np.float32(1), np.float32(0.1)], {}),
    ],
)
def test_what_libraries_may_round_differently_is_left_to_onnxruntime(
    op: str, operands: list[Any], attrs: dict[str, Any]
) -> None:
    assert answers(op, operands, **attrs)[0] is None


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ([1.5, -2.5, 0.0, -0.0], True),
        ([2147483520.0, -2147483648.0], True),
        ([2147483648.0], False),
        ([np.nan], False),
        ([-np.inf], False),
    ],
)
def test_floats_are_cut_off_where_the_integers_hold_them(values: list[float], fits: bool) -> None:
    graph = "g () => (int32[N] y) <float[%d] c = {%s}> { y = Cast<to = 6>(c) }"
    array = np.array(values, np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        + graph % (len(values), ", ".join("0" for _ in values))
    )
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "c"))
    found = truncated(next(iter(load(model).main.bindings)))
    assert (found is not None) is fits
    if found is not None:
        np.testing.assert_array_equal(found, run(model, {})["y"], strict=True)


def test_floats_that_are_no_zero_are_true() -> None:
    model = parse("g () => (bool[5] y) <float[5] c = {0, 0, 0, 0, 0}> { y = Cast<to = 9>(c) }")
    array = np.array([0.0, -0.0, 0.5, 1e-40, np.nan], np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "c"))
    found = truncated(next(iter(load(model).main.bindings)))
    assert found is not None
    assert found.tolist() == [False, False, True, True, True]
    np.testing.assert_array_equal(found, run(model, {})["y"], strict=True)


@pytest.mark.parametrize(
    ("attributes", "weight", "addend", "exact"),
    [
        ("alpha = 1.0", "1, -2, 3, -4", "5, 6", True),
        ("transB = 1, alpha = -2.0", "1, -2, 3, -4", "5, -6", True),
        ("alpha = 1.0", "1, -2, 3, -4", "5, 0", False),  # +0 or -0, as the products are
        ("beta = 2.0", "1, -2, 3, -4", "5, 6", False),
        ("alpha = 1.0", "1, -2, 3, inf", "5, 6", False),  # 0 * inf
    ],
)
def test_a_product_of_zeros_is_what_it_adds(
    attributes: str, weight: str, addend: str, exact: bool
) -> None:
    model = parse(
        f"g () => (float[3,2] y) <float[3,2] a = {{0, -0.0, 0, 0, 0, 0}}, "
        f"float[2,2] w = {{{weight}}}, float[2] c = {{{addend}}}> "
        f"{{ y = Gemm<{attributes}>(a, w, c) }}"
    )
    found = product_of_zeros(next(iter(load(model).main.bindings)))
    assert (found is not None) is exact
    if found is not None:
        np.testing.assert_array_equal(found, run(model, {})["y"], strict=True)


NAMES = {"float16": np.float16, "float": np.float32, "double": np.float64}
PASSES = "backward-fold-scale-axis,forward-fold-scale-axis,fold-constant"


def scaled(
    dtype: str,
    weight: Any,
    scale: Any,
    body: str = "a = MatMul(x, w) y = Mul(a, s)",
    passes: str = PASSES,
) -> Done:
    kind = NAMES[dtype]
    rows = np.asarray(weight).shape[0]
    text = f"g ({dtype}[3,{rows}] x) => ({dtype}[3,2] y) {{ {body} }}"
    return apply(
        model_of(text, {"w": np.asarray(weight, kind), "s": np.asarray(scale, kind)}), passes
    )


W = np.random.default_rng(0).uniform(0.5, 1.5, (8, 2))


@pytest.mark.parametrize(
    ("dtype", "weight", "scale", "moves"),
    [
        ("float16", 1e-2, [0.5, 2], True),
        ("float16", 1e-2, [1e-4, 2e-4], False),
        ("float16", 1e3, [1e3, 1], False),
        ("float", 1e-25, [1e-19, 2e-19], False),
        ("float", 1e-25, [1e-9, 2e-9], True),
        ("float", 1e30, [1e10, 1], False),
        ("double", 1e-300, [1e-15, 1], False),
        ("double", 1e-300, [1e-5, 1], True),
    ],
)
def test_a_scale_moves_when_the_weight_keeps_its_digits(
    dtype: str, weight: float, scale: Any, moves: bool
) -> None:
    done = scaled(dtype, W * weight, scale)
    assert (done.count("Mul") == 0) == moves
    divided = scaled(dtype, W * weight, [1 / s for s in scale], "a = MatMul(x, w) y = Div(a, s)")
    assert (divided.count("Div") == 0) == moves
    in_front = scaled(dtype, W[:2] * weight, scale, "a = Mul(x, s) y = MatMul(a, w)")
    assert (in_front.count("Mul") == 0) == moves


def test_one_channel_does_not_pay_for_another() -> None:
    assert scaled("float16", W * [1, 1e-2], [1, 1e-3]).count("Mul") == 1
    assert scaled("float16", W * [1, 0], [1, 1e-3]).count("Mul") == 0


def test_a_dead_channel_does_not_keep_a_scale_in_place() -> None:
    """Trained networks have them: smaller than the last digit of the last digit of the others."""
    assert scaled("float", W * [1, 1e-39], [1, 1e-3]).count("Mul") == 0


def test_what_vanishes_beside_its_own_channel_may() -> None:
    weight = W.copy()
    weight[3] = 1e-38
    assert scaled("float", weight, [1e-3, 1]).count("Mul") == 0


def test_a_weight_that_is_not_folded_yet_is_looked_at_too() -> None:
    body = "t = Transpose<perm=[1,0]>(w) a = MatMul(x, t) y = Mul(a, s)"
    text = f"g (float[3,8] x) => (float[3,2] y) {{ {body} }}"
    for weight, left in ((1e-25, 1), (1.0, 0)):
        constants = {
            "w": (W.T * weight).astype(np.float32),
            "s": np.array([1e-19, 2e-19], np.float32),
        }
        done = apply(model_of(text, constants), "backward-fold-scale-axis")
        assert sum(b.op == "Mul" and b.out.returned for b in done.block.bindings) == left


def test_a_bias_that_would_overflow_stays() -> None:
    text = "g (float16[3,8] x) => (float16[3,2] y) { a = Gemm(x, w, c) y = Add(a, d) }"
    for size, left in ((60000, 1), (6, 0)):
        constants = {
            "w": W.astype(np.float16),
            "c": np.full(2, size, np.float16),
            "d": np.full(2, size, np.float16),
        }
        assert apply(model_of(text, constants), "fold-bias").count("Add") == left


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("fill", [5.0, 0.0])
@pytest.mark.parametrize("forward", [True, False])
def test_a_scalar_does_not_pass_a_pad_of_another_fill(
    opset: int, fill: float, forward: bool
) -> None:
    pad = "Pad(%s, p, v)" if opset > 10 else f"Pad<pads=[0,0,1,1,0,0,1,1], value={fill}>(%s)"
    conv = "Conv<kernel_shape=[1,1]>(%s, w)"
    body = (
        f"a = Mul(x, s) b = {pad % 'a'} y = {conv % 'b'}"
        if forward
        else f"a = {conv % 'x'} b = {pad % 'a'} y = Mul(b, s)"
    )
    constants: dict[str, Any] = {"s": np.float32(2), "w": np.ones((2, 2, 1, 1), np.float32)}
    if opset > 10:
        constants |= {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(fill)}
    model = model_of(
        f"g (float[1,2,4,4] x) => (float[1,2,6,6] y) {{ {body} }}", constants, opset=opset
    )
    name = "forward" if forward else "backward"
    done = apply(model, f"{name}-fold-scale-axis{{scalars=true}}", "fold-constant")
    assert done.count("Mul") == (1 if fill else 0)
    assert_same_results(done)


def test_the_measure_of_lost_digits() -> None:
    def lost(exact: Any, dtype: int = 1) -> bool:
        return reason_of_rounding(np.asarray(exact, np.longdouble), dtype, "w") is not None

    assert (
        not lost(1 / np.longdouble(3))
        and lost(np.longdouble(1e-44) / 3)
        and lost(np.longdouble(1e39))
    )
    assert not lost(np.zeros((2, 3))) and not lost(np.zeros((0, 3)))
    assert not lost([1e-44 / 3, 1.0]) and lost([[1e-44 / 3], [1e-36]])


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE])
def test_numbers_with_all_their_digits_need_no_second_look(dtype: int) -> None:
    least = NORMAL[dtype]
    assert least == float(np.finfo(numpy_dtype(dtype)).tiny)
    edge = np.array([least * (1 - EPSILON[dtype] / 4), -least, 0.0], np.longdouble)
    assert reason_of_rounding(edge, dtype, "w") is None
    assert reason_of_rounding(edge * EPSILON[dtype] * 1.3, dtype, "w") is not None
