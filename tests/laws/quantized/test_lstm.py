"""DynamicQuantizeLSTM: the steps of its kernel as a Scan, in quanta of the state, and its gradients."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import onnxgrad
from onnxgrad.verify.running.session import run
from tests.rewriting import Array, apply, model_of

STEPS, ROWS, FEATURES, STATE = 12, 3, 10, 16
WEIGHTS = {"W": FEATURES, "R": STATE}


def normal(*shape: int) -> Array:
    return (np.random.default_rng(sum(shape)).uniform(-1, 1, shape) / 2).astype(np.float32)


def lstm(direction: str, *, full: bool = False) -> ModelProto:
    """An LSTM of opset 17; `full`: with initial states and peepholes, and a batch that is open."""
    count = 2 if direction == "bidirectional" else 1
    held = {n: normal(count, 4 * STATE, rows) for n, rows in WEIGHTS.items()}
    held = {n: v / 2 for n, v in held.items()}  # as exported networks: at most 1 / sqrt(STATE)
    held |= {"B": normal(count, 8 * STATE)} | ({"P": normal(count, 3 * STATE)} if full else {})
    batch: Any = "N" if full else ROWS
    states = dict.fromkeys(("h", "c"), (count, batch, STATE)) if full else {}
    shapes = {"x": (STEPS, batch, FEATURES), **states}
    rest = ["", "h", "c", "P"] if full else []
    node = helper.make_node(
        "LSTM", ["x", "W", "R", "B", *rest], ["y", "last", "cell"], hidden_size=STATE,
        direction=direction,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()],
        [helper.make_empty_tensor_value_info(n) for n in node.output],
        [numpy_helper.from_array(v, n) for n, v in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantised(model: ModelProto, folder: Path, kind: str) -> ModelProto:
    """As onnxruntime.quantization writes it: `s8`, `u8`, by channel or not."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable()
    given, made = folder / "given.onnx", folder / "made.onnx"
    onnx.save(model, given)
    weight = QuantType.QInt8 if "s8" in kind else QuantType.QUInt8
    try:
        quantize_dynamic(given, made, weight_type=weight, per_channel="channels" in kind)
    finally:
        logging.disable(logging.NOTSET)
    result = onnx.load(made)
    assert result.graph.node[0].op_type == "DynamicQuantizeLSTM"
    return result


def feeds_of(model: ModelProto) -> dict[str, Array]:
    shapes = {
        v.name: [d.dim_value or ROWS for d in v.type.tensor_type.shape.dim]
        for v in model.graph.input
    }
    return {n: normal(*s) * (3 if n == "x" else 1) for n, s in shapes.items()}


QUICK = ("bidirectional", "s8", True)


@pytest.mark.parametrize(
    ("direction", "kind", "full"),
    [
        pytest.param(*case, marks=[] if case == QUICK else [pytest.mark.slow])
        for d in ("forward", "reverse", "bidirectional")
        for kind in ("s8", "u8", "s8 channels", "u8 channels")
        for full in (False, True)
        for case in [(d, kind, full)]
    ],
)
@pytest.mark.exact8
def test_within_a_quantum_of_the_kernel(
    direction: str, kind: str, full: bool, tmp_path: Path
) -> None:
    """On one thread but for rounding, on two by less: the kernel gives each thread rows of its own."""
    model = quantised(lstm(direction, full=full), tmp_path, kind)
    feeds = feeds_of(model)
    wants = [run(model, feeds, threads=n) for n in (1, 2)]
    quantum = float(wants[0]["y"].max() - wants[0]["y"].min()) / 255
    for form in ("qdq", "float"):
        done = apply(model, f"legalize{{to={form}}}")
        assert {b.domain for b in done.program.main.bindings} == {""}
        (inexact,) = done.trace.inexact
        assert "less than a quantum" in inexact.reason
        # optimised, onnxruntime would round the products of the QDQ form anew
        got = run(done.after, feeds, threads=1, optimize=False)
        for bound, want in zip((0.15, 0.9), wants, strict=True):
            off = {n: np.abs(want[n] - v).max() / quantum for n, v in got.items()}
            assert max(off.values()) <= bound, off


def test_gradients_reach_its_weights(tmp_path: Path) -> None:
    """Straight through: near those of the float operator at the rounded weights."""
    model = quantised(lstm("bidirectional"), tmp_path, "s8")
    legal = onnxgrad.optimize(model, passes="legalize", verify=False)
    names = [f"{n}_{d}_dequantized" for n in WEIGHTS for d in (0, 1)]
    graph = onnxgrad.gradient(legal, names, "y", adjoint="input", ste=True)
    exact = onnxgrad.gradient(lstm("bidirectional"), ["W", "R"], "y", adjoint="input")
    feeds = {**feeds_of(model), "y_grad": normal(STEPS, 2, ROWS, STATE)}
    found, near = run(graph, feeds), run(exact, feeds)
    for name in names:
        n, d, _ = name.split("_")
        g, want = found[f"{name}_grad"], near[f"{n}_grad"][int(d)].T
        assert np.abs(g - want).max() < 0.05 * np.abs(want).max(), name


TEXT = """g (float[5,4,8] x, int32[4] n) => (float[5,1,4,16] y) {{
    y = com.microsoft.DynamicQuantizeLSTM<hidden_size = 16{}>(x, w, r, ,{}, , , , s, z, s, z) }}"""


@pytest.mark.parametrize(
    ("attribute", "operand", "reason"),
    [
        (", clip = 1.0", "", "clip"),
        (", input_forget = 1", "", "input_forget"),
        (', activations = ["Relu", "Tanh", "Tanh"]', "", "other activations"),
        ("", "n", "different steps"),
    ],
)
def test_what_stays(attribute: str, operand: str, reason: str) -> None:
    weights = {n: np.ones((1, rows, 64), np.int8) for n, rows in (("w", 8), ("r", 16))}
    scales = {"s": np.full(1, 0.01, np.float32), "z": np.zeros(1, np.int8)}
    model = model_of(TEXT.format(attribute, operand), {**weights, **scales})
    model.opset_import.add(domain="com.microsoft", version=1)
    done = apply(model, "legalize")
    assert done.ops == ["DynamicQuantizeLSTM"] and reason in done.declined
    with pytest.raises(onnxgrad.InputError, match=r"DynamicQuantizeLSTM.*ste=True"):
        onnxgrad.gradient(model, "x", adjoint="input")
    feeds = {
        "x": normal(5, 4, 8),
        "n": np.array([5, 3, 5, 1], np.int32),
        "y_grad": normal(5, 1, 4, 16),
    }
    found = run(onnxgrad.gradient(model, "x", adjoint="input", ste=True), feeds)
    assert np.abs(found["x_grad"]).max() > 0
