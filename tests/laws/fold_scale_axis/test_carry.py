"""f(x * s) = f(x) * s, in both directions, by the numbers of both sides; and what no scale passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.laws.fold_scale_axis.carry import carries, carry
from onnxgrad.laws.fold_scale_axis.scale import Scale, again
from onnxgrad.rewrite.trace import Decline
from tests.rewriting import emitted, model_of, weights

POSITIVE = np.array([2, 0.25, 3], np.float32)
SIGNED = np.array([2, -0.25, 3], np.float32)
X = "2,3,4,4"

# the operator, the operand's shape, the axis in front, the axis behind, further constants, whether any sign passes
CASES: list[tuple[str, str, int, int, dict[str, Any], bool]] = [
    ("Identity(x)", X, 1, 1, {}, True),
    ("Neg(x)", X, 1, 1, {}, True),
    ("Relu(x)", X, 1, 1, {}, False),
    ("LeakyRelu <alpha = 0.1> (x)", X, 1, 1, {}, False),
    ("PRelu(x, k)", X, 1, 1, {"k": np.float32([[[0.1]], [[0.2]], [[0.3]]])}, False),
    ("MaxPool <kernel_shape = [2, 2]> (x)", X, 1, 1, {}, False),
    ("AveragePool <kernel_shape = [2, 2]> (x)", X, 1, 1, {}, True),
    ("GlobalAveragePool(x)", X, 1, 1, {}, True),
    ("GlobalMaxPool(x)", X, 1, 1, {}, False),
    ("Transpose <perm = [0, 2, 3, 1]> (x)", X, 1, 3, {}, True),
    ("Reshape(x, k)", X, 1, 1, {"k": np.array([2, 3, 16])}, True),
    ("Flatten <axis = 2> (x)", "1,3,4", 1, 0, {}, True),
    ("Squeeze(x, k)", "1,3,4", 1, 0, {"k": np.array([0])}, True),
    ("Unsqueeze(x, k)", "3,4", 0, 1, {"k": np.array([0])}, True),
    ("ReduceMean(x, k)", X, 1, 1, {"k": np.array([2, 3])}, True),
    ("ReduceSum <keepdims = 0> (x, k)", X, 1, 0, {"k": np.array([0, -1])}, True),
    ("Pad(x, k)", X, 1, 1, {"k": np.array([0, 0, 1, 2, 0, 0, 0, 1])}, True),
    ("Pad(x, k, , a)", X, 1, 1, {"k": np.array([1, 2, 0, 1]), "a": np.array([2, -1])}, True),
    ('Pad <mode = "reflect"> (x, k)', X, 1, 1, {"k": np.array([0, 0, 1, 0, 0, 0, 1, 0])}, True),
    ("Clip(x, lo)", X, 1, 1, {"lo": np.float32(0)}, False),
]  # fmt: skip


def model(node: str, shape: str, constants: dict[str, Any]) -> Any:
    return model_of(f"g (float[{shape}] x) => (float[] y) {{ y = {node} }}", constants)


def both_sides(given: Any, scale: Scale, behind: int, forward: bool, x: Any) -> tuple[Any, Any]:
    """The scale on the one side of the operator, and on the other as `carry` says."""

    def build(v: dict[str, Any]) -> list[Any]:
        b = v["y"].definition
        assert carries(b)
        if forward:
            in_front = again(b, [scale.times(v["x"], scale.axis), *b.inputs[1:]])
            there = carry(b, scale, True)
            assert there.scale.axis == behind
            plain = again(b, [v["x"], *there.rest], there.attrs)
            return [in_front, there.scale.times(plain, there.scale.axis)]
        there = carry(b, scale.at(behind if scale.axis is not None else None), False)
        assert there.scale.axis == scale.axis
        scaled = again(b, [there.scale.times(v["x"], there.scale.axis), *there.rest], there.attrs)
        return [scale.times(v["y"], behind), scaled]

    one, other = emitted(given, build, {"x": x})
    return one, other


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize(("node", "shape", "front", "behind", "constants", "signed"), CASES)
def test_both_sides_are_equal(
    node: str,
    shape: str,
    front: int,
    behind: int,
    constants: dict[str, Any],
    signed: bool,
    forward: bool,
) -> None:
    given = model(node, shape, constants)
    x = weights(x=[int(d) for d in shape.split(",")])["x"]
    one, other = both_sides(given, Scale(SIGNED if signed else POSITIVE, front), behind, forward, x)
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(("node", "shape", "front", "behind", "constants", "signed"), CASES)
def test_a_sign_passes_only_what_is_linear(
    node: str, shape: str, front: int, behind: int, constants: dict[str, Any], signed: bool
) -> None:
    if not signed:
        declined(node, Scale(SIGNED, front), "not positive", shape, **constants)


@pytest.mark.parametrize("opset", [6, 11, 20])
@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("forward", [True, False])
def test_one_factor_moves_the_bounds_of_a_clip(opset: int, divide: bool, forward: bool) -> None:
    node = "Clip <min = -0.5, max = 0.75> (x)" if opset < 11 else "Clip(x, lo, hi)"
    bounds = {} if opset < 11 else {"lo": np.float32(-0.5), "hi": np.float32(0.75)}
    given = model_of(f"g (float[2,3] x) => (float[2,3] y) {{ y = {node} }}", bounds, opset=opset)

    def build(v: dict[str, Any]) -> list[Any]:
        b, scale = v["y"].definition, Scale(np.float32(4).reshape(()), None, divide)
        there = carry(b, scale, forward)
        if forward:
            plain = again(b, [v["x"], *there.rest], there.attrs)
            return [
                again(b, [scale.times(v["x"], None), *b.inputs[1:]]),
                there.scale.times(plain, None),
            ]
        return [
            scale.times(v["y"], None),
            again(b, [there.scale.times(v["x"], None), *there.rest], there.attrs),
        ]

    one, other = emitted(given, build, {"x": weights(x=(2, 3))["x"]})
    np.testing.assert_allclose(one, other, rtol=1e-6)


def declined(
    node: str, scale: Scale, reason: str, shape: str = X, forward: bool = True, **constants: Any
) -> None:
    block = load(model(node, shape, constants)).main
    b = block.outputs[0].definition
    with emitting(block), pytest.raises(Decline, match=reason):
        carry(b, scale, forward)


CHANNELS = Scale(POSITIVE, 1)


@pytest.mark.parametrize(
    ("node", "scale", "reason", "constants"),
    [
        ("AveragePool <kernel_shape = [2, 2]> (x)", Scale(np.ones(4), 2), "mixes the axis", {}),
        ("ReduceSum(x, k)", CHANNELS, "sums over the axis", {"k": np.array([1])}),
        ("ReduceSum(x)", CHANNELS, "sums over the axis", {}),
        ("Reshape(x, k)", CHANNELS, "does not keep the channel axis", {"k": np.array([6, -1])}),
        ("Pad(x, k)", CHANNELS, "lengthens the axis", {"k": np.array([0, 1, 0, 0, 0, 0, 0, 0])}),
        (
            "Pad(x, k, v)",
            CHANNELS,
            "other than 0",
            {"k": np.zeros(8, np.int64), "v": np.float32(1)},
        ),
        ("Clip(x, lo)", CHANNELS, "differently in each channel", {"lo": np.float32(-1)}),
    ],
)
def test_what_a_scale_does_not_pass(
    node: str, scale: Scale, reason: str, constants: dict[str, Any]
) -> None:
    declined(node, scale, reason, **constants)


def test_bounds_and_amounts_known_only_at_run_time() -> None:
    for node, inputs, reason in (
        ("Clip(x, lo)", "float lo", "bound of Clip is known only at run time"),
        ("Pad(x, k)", "int64[8] k", "known only at run time"),
    ):
        block = load(model_of(f"g (float[{X}] x, {inputs}) => (float[] y) {{ y = {node} }}")).main
        with emitting(block), pytest.raises(Decline, match=reason):
            carry(block.outputs[0].definition, CHANNELS, True)


def test_the_indices_of_a_pool_are_a_second_output() -> None:
    text = f"g (float[{X}] x) => (float[] y, int64[] i) {{ y, i = MaxPool <kernel_shape = [2, 2]> (x) }}"
    block = load(model_of(text)).main
    with emitting(block), pytest.raises(Decline, match="second output"):
        carry(block.outputs[0].definition, CHANNELS, True)


@pytest.mark.parametrize("node", ["Sigmoid(x)", "my.Relu(x)", "ReduceMax(x)", "Softmax(x)"])
def test_what_carries_none(node: str) -> None:
    header = '<ir_version: 10, opset_import: ["" : 20, "my" : 1]>'
    block = load(model_of(f"{header} g (float[2,3] x) => (float[] y) {{ y = {node} }}")).main
    assert not carries(block.outputs[0].definition)
