"""An initial state of zeros goes: the operators begin with zeros where none is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.helpers import ROOT
from tests.laws.quantized.test_lstm import STATE, feeds_of, lstm, quantised
from tests.rewriting import Done, apply, assert_same_bits, rewritten

HIDDEN, INPUT, STEPS = 4, 3, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RNG = np.random.default_rng(0)


def constants(layer: str, directions: int = 1, **more: Any) -> dict[str, Any]:
    rows = GATES[layer] * HIDDEN
    w = RNG.standard_normal((directions, rows, INPUT)).astype(np.float32)
    r = RNG.standard_normal((directions, rows, HIDDEN)).astype(np.float32)
    return {"w": w, "r": r, **more}


def text(layer: str, chain: str, operands: str, directions: int = 1, attrs: str = "") -> str:
    way = ', direction = "bidirectional"' if directions == 2 else ""
    return f"""g (float[{STEPS},B,{INPUT}] a) => (float[{STEPS},{directions},B,{HIDDEN}] y) {{
        {chain}
        y, last = {layer} <hidden_size = {HIDDEN}{way}{attrs}> (a, w, r, , , {operands})
      }}"""


def zeros_of_size(directions: int) -> str:
    """As PyTorch's older exporter writes them: zeros for all layers, and the part of this one."""
    return f"""s = Shape (a)  i = Constant <value_int = 1> ()  b = Gather (s, i)
        axes = Constant <value_ints = [0]> ()  n = Unsqueeze (b, axes)
        l = Constant <value_ints = [{2 * directions}]> ()  k = Constant <value_ints = [{HIDDEN}]> ()
        size = Concat <axis = 0> (l, n, k)  all = ConstantOfShape (size)
        e = Constant <value_ints = [{directions}]> ()  h = Slice (all, axes, e, axes)"""


def run_on(done: Done, batch: int = 2) -> None:
    assert_same_bits(done, a=RNG.standard_normal((STEPS, batch, INPUT)).astype(np.float32))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layer", GATES)
def test_computed_zeros_go(layer: str, directions: int) -> None:
    operands = "h, h" if layer == "LSTM" else "h"
    done = rewritten(
        text(layer, zeros_of_size(directions), operands, directions), "remove-noops,remove-unused",
        constants(layer, directions),
    )  # fmt: skip
    assert done.ops == [layer]
    run_on(done)
    run_on(done, batch=1)  # of an empty batch onnxruntime dies


def joined(second: str) -> str:
    """As tf2onnx writes the states of a bidirectional layer: those of each direction, joined."""
    return f"""s = Shape (a)  one = Constant <value_ints = [1]> ()  two = Constant <value_ints = [2]> ()
        b = Slice (s, one, two)  k = Constant <value_ints = [{HIDDEN}]> ()
        size = Concat <axis = 0> (b, k)  f = Constant <value_float = 0.0> ()
        rows = Expand (f, size)  axes = Constant <value_ints = [0]> ()
        forth = Unsqueeze (rows, axes)  {second}
        h = Concat <axis = 0> (forth, back)"""


@pytest.mark.parametrize("layer", GATES)
def test_joined_zeros_go(layer: str) -> None:
    chain = joined("back = Unsqueeze (rows, axes)")
    operands = "h, h" if layer == "LSTM" else "h"
    done = rewritten(
        text(layer, chain, operands, 2), "remove-noops,remove-unused", constants(layer, 2)
    )
    assert done.ops == [layer]
    run_on(done)


def test_joined_states_stay_if_one_is_not_zero() -> None:
    chain = joined("e = Constant <value_float = 1.0> ()  back = Expand (e, whole)").replace(
        "size =", "whole = Concat <axis = 0> (one, b, k)  size ="
    )
    done = rewritten(text("LSTM", chain, "h, h", 2), "remove-noops", constants("LSTM", 2))
    assert not done.fired("initial_state_of_zeros")


def test_one_of_two_states_goes() -> None:
    chain = "one = Expand (c, size)"
    found = constants(
        "LSTM",
        c=np.float32(1),
        size=np.array([1, 2, HIDDEN]),
        z=np.zeros((1, 2, HIDDEN), np.float32),
    )
    for operands, left in (("z, one", "_, _, _, one"), ("one, z", "_, _, one")):
        model = text("LSTM", chain, operands).replace("B", "2")
        done = rewritten(model, "remove-noops", found)
        assert f"LSTM(a, w, r, {left}," in done.text
        run_on(done)


def test_peepholes_keep_their_place() -> None:
    found = constants(
        "LSTM", z=np.zeros((1, 2, HIDDEN), np.float32), peep=RNG.standard_normal((1, 3 * HIDDEN))
    )
    found["peep"] = found["peep"].astype(np.float32)
    done = rewritten(text("LSTM", "", "z, z, peep").replace("B", "2"), "remove-noops", found)
    assert "LSTM(a, w, r, _, _, _, _, peep," in done.text
    run_on(done)


def test_batch_first() -> None:
    model = f"""g (float[2,{STEPS},{INPUT}] a) => (float[2,{STEPS},1,{HIDDEN}] y) {{
        y = GRU <hidden_size = {HIDDEN}, layout = 1> (a, w, r, , , z)
      }}"""
    found = constants("GRU", z=np.zeros((2, 1, HIDDEN), np.float32))
    done = rewritten(model, "remove-noops", found)
    assert done.fired("initial_state_of_zeros") == 1  # onnxruntime has no kernel for this layout


STAYS = {
    "another number": np.full((1, 2, HIDDEN), 1e-30, np.float32),
    "negative zeros": np.full((1, 2, HIDDEN), -0.0, np.float32),
    "a NaN": np.full((1, 2, HIDDEN), np.nan, np.float32),
}


@pytest.mark.parametrize("state", STAYS.values(), ids=STAYS)
def test_other_states_stay(state: np.ndarray[Any, Any]) -> None:
    done = rewritten(
        text("GRU", "", "h").replace("B", "2"), "remove-noops", constants("GRU", h=state)
    )
    assert not done.fired("initial_state_of_zeros")


def test_a_state_of_unknown_or_other_shape_stays() -> None:
    """onnxruntime refuses the model whose state is of another batch; so must it be afterwards."""
    found = constants("GRU", h=np.zeros((1, 2, HIDDEN), np.float32))
    done = rewritten(text("GRU", "", "h"), "remove-noops", found)  # a batch of any size against 2
    assert done.reasons("initial_state_of_zeros") == [
        "the initial state is not known to have the layer's shape"
    ]


def test_a_constant_stays_where_it_may_be_trained() -> None:
    found = constants("GRU", h=np.zeros((1, 2, HIDDEN), np.float32))
    done = rewritten(text("GRU", "", "h").replace("B", "2"), "remove-noops{floats=false}", found)
    assert not done.fired("initial_state_of_zeros")


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("zeros", [True, False], ids=["of the batch", "of another batch"])
def test_the_quantised_layer(direction: str, zeros: bool, tmp_path: Path) -> None:
    """Its R is transposed; peepholes and scales keep their places."""
    model = quantised(lstm(direction, full=True), tmp_path, "s8")
    graph, directions = model.graph, 1 + (direction == "bidirectional")
    for name in ("h", "c"):
        graph.input.remove(next(v for v in graph.input if v.name == name))
    sizes = {"rows": [directions], "units": [STATE], "three": [directions, 3, STATE]}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(v, np.int64), n) for n, v in sizes.items()
    )
    made = [
        helper.make_node("Shape", ["x"], ["batch"], start=1, end=2),
        helper.make_node("Concat", ["rows", "batch", "units"], ["size"], axis=0),
        *(helper.make_node("ConstantOfShape", ["size" if zeros else "three"], [n]) for n in "hc"),
    ]
    graph.node.MergeFrom([*made, graph.node.pop()])
    done = apply(model, "remove-noops,remove-unused")
    if not zeros:
        assert not done.fired("initial_state_of_zeros")
        return
    assert done.ops == ["DynamicQuantizeLSTM"]
    assert_same_bits(done, **feeds_of(model))


def test_an_exported_network() -> None:
    done = apply(onnx.load(ROOT / "models/lstm_script.onnx"))
    assert done.fired("initial_state_of_zeros") == 2
    assert done.count("ConstantOfShape", "Slice", "Shape") == 0
    done.prove()
