"""A model with a batch of any size: which inputs, what the interface says, and models whose rows depend on each other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.transform.open_batch import open_rows
from tests.batching.test_batching import opened
from tests.helpers import parse
from tests.rewriting import model_of

BN = "float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0.5, 0}, float[2] v = {1, 2}"
# name: (model, the node that is to blame; empty: each row by itself is what was asked)
ADVERSARIAL = {
    "statistics of a batch in training": (
        f"g (float[1,2,3] x) => (float[1,2,3] y) <{BN}> {{ y, p, q = BatchNormalization <training_mode = 1> (x, s, b, m, v) }}",
        "BatchNormalization.*statistics"),
    "dynamic quantisation": (
        "g (float[1,3] x) => (float[1,3] y) { q, s, z = DynamicQuantizeLinear (x)  y = DequantizeLinear (q, s, z) }",
        "DynamicQuantizeLinear"),
    "dynamic quantisation in single nodes": (
        "g (float[1,3] x) => (uint8[1,3] y) { m = ReduceMax <keepdims = 0> (x)  c = Constant <value_float = 255.0> ()"
        "  s = Div (m, c)  z = Constant <value = uint8 {0}> ()  y = QuantizeLinear (x, s, z) }", "QuantizeLinear.*dynamic quantisation"),
    "statistics of a batch in single nodes": (
        "g (float[1,2,3] x) => (float[1,2,3] y) { a = Constant <value_ints = [0, 2]> ()  m = ReduceMean (x, a)  y = Sub (x, m) }",
        "ReduceMean.*statistics over the batch.*along='warn'"),
    "random draws": (
        "g (float[1,3] x) => (float[1,3] y) { r = RandomNormal <shape = [1, 3]> ()  y = Add (x, r) }", "RandomNormal"),
    "a -1 that swallows the batch": (
        "g (float[1,3] x) => (float[3] y) { s = Constant <value_ints = [-1]> ()  r = Reshape (x, s)  y = Softmax <axis = 0> (r) }", ""),
    "a softmax over a flattened batch": (
        "g (float[1,2,3] x) => (float[6] y) { s = Constant <value_ints = [6]> ()  r = Reshape (x, s)  y = Softmax (r) }", ""),
    "a reduction over the batch": (
        "g (float[1,3] x) => (float[1,3] y) { a = Constant <value_ints = [0]> ()  m = ReduceMean (x, a)  e = Exp (x)"
        "  y = Sub (e, m) }", ""),
    "a row of the batch by its index": (
        "g (float[1,3] x) => (float[3] y) { i = Constant <value_int = 0> ()  y = Gather (x, i) }", ""),
    "a join along the batch": (
        "g (float[1,3] x) => (float[2,3] y) { n = Neg (x)  y = Concat <axis = 0> (x, n) }", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_rows_that_may_depend_on_each_other(name: str) -> None:
    text, reason = ADVERSARIAL[name]
    model = parse(text)
    with pytest.raises(
        InputError, match="|".join(filter(None, [reason, "along the rows|over the rows"]))
    ):
        open_rows(load_own(model), along="refuse")
    if reason:
        with pytest.raises(InputError, match=reason):
            open_rows(load_own(model))
    else:  # exact, row by row, and said
        assert opened(model).warnings


def test_the_interface() -> None:
    model = parse("""g (float[1,4] x, float[1] t, float[1,4] z) => (float[1,4] y, float s, float[8] k, float[1] u)
      { a = Add (x, z)  y = Mul (a, t)  s = ReduceSum <keepdims = 0> (x)  c = Concat <axis = 1> (x, z)
        f = Constant <value_ints = [-1]> ()  k = Reshape (c, f)  u = Neg (t) }""")
    done = opened(model)
    assert done.inputs == {"x": 0, "z": 0}
    main = done.program.main
    assert [str(v.type) for v in main.inputs] == ["f32[batch,4]", "f32[1]", "f32[batch,4]"]
    assert [str(v.type) for v in main.outputs] == [
        "f32[batch,4]", "f32[batch]", "f32[8*batch]", "f32[1]"
    ]  # fmt: skip
    assert [note.partition("'")[2] for note in done.notes] == [
        "t' f32[1] is shared by all rows; if it has rows, name it in inputs as t",
        "s' is a scalar in each row: its only axis counts rows",
        "k' has 8 entries per row on axis 0",
        "u' is the same for all rows",
    ]
    every = opened(model, ["x", "t", "z"])
    assert str(every.program.main.outputs[3].type) == "f32[batch]"


@pytest.mark.parametrize(
    ("inputs", "symbol", "reason"),
    [
        (["q"], "batch", "'q' is not an input"),
        (["w"], "batch", r"'w': axis 0 of f32\[N,4\] is open already: leave it out of inputs"),
        (["x.2"], "batch", "axis 2 of .* is not of a fixed size"),
        (None, "N", "exists already"),
    ],
)
def test_bad_choices(inputs: list[str] | None, symbol: str, reason: str) -> None:
    model = parse("g (float[1,4] x, float[N,4] w) => (float[N,4] y) { y = Mul (x, w) }")
    with pytest.raises(InputError, match=reason):
        open_rows(load_own(model), inputs, symbol=symbol)


def test_a_batch_that_is_open_is_named() -> None:
    program = load_own(parse("g (float[N,4] x) => (float[N,4] y) { y = Tanh (x) }"))
    words = (
        r"the batch is open already: axis 0 of x is dynamic .*; open={NAME: 'INPUT.AXIS'} opens an"
    )
    with pytest.raises(InputError, match=words):
        open_rows(program)
    with pytest.raises(InputError, match="no input has a first axis of size 4"):
        open_rows(program, batch=4)


def test_rows_on_another_axis() -> None:
    model = parse(
        "g (float[1,4] x, float[2,1,4] s) => (float[2,1,4] y) { a = Add (x, s)  y = Tanh (a) }"
    )
    assert opened(model).notes[0].endswith("name it in inputs as s.1")
    done = opened(model, ["x", "s.1"])
    assert [str(v.type) for v in done.program.main.inputs] == ["f32[batch,4]", "f32[2,batch,4]"]
    assert done.in_place == 2 and done.outputs["y"].axis == 1


def test_an_input_of_another_kind() -> None:
    model = parse(
        "g (float[1,4] x, seq(float[2]) s) => (float[1,4] y, seq(float[2]) t) { y = Exp (x)  t = Identity (s) }"
    )
    done = open_rows(load_own(model))
    assert [str(v.type) for v in done.program.main.inputs] == ["f32[batch,4]", "seq(f32[2])"]


def test_no_batch_of_one() -> None:
    with pytest.raises(
        InputError, match=r"no input has a first axis of size 1 \(inputs: x f32\[2,4\]\)"
    ):
        open_rows(load_own(parse("g (float[2,4] x) => (float[2,4] y) { y = Neg (x) }")))


def test_an_old_file_and_functions() -> None:
    old = parse("g (float[1,6] x) => (float[3,2] y) { s = Constant <value_ints = [3, 2]> ()  y = Reshape (x, s) }",
                ir_version=3)  # fmt: skip
    assert opened(old).program.ir_version == 3
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
      g (float[1,4] x) => (float[1,4] y) { y = d.f (x) }
      <domain: "d", opset_import: ["" : 20]> f (a) => (b) { e = Exp (a)  b = Neg (e) }""")
    assert opened(model).in_place == 2


def test_an_output_whose_declared_shape_lies() -> None:
    model = parse("g (float[1,4] x) => (float[N,M] y) { y = Exp (x) }")
    assert str(opened(model).program.main.outputs[0].type) == "f32[batch,4]"


@pytest.mark.parametrize("name", ["resnet18", "clip", "vit", "t5", "whisper", "lstmcell"])
@pytest.mark.slow
def test_real_models(name: str) -> None:
    path = f"models/{name}.onnx"
    if name == "lstmcell":  # a batch of 4
        with pytest.raises(InputError, match="no input has"):
            onnxgrad.open_batch(path)
        return
    assert not opened(onnx.load(path)).scanned


def test_weights_stay() -> None:
    """A constant that the file computes from a weight would ignore a new value of the weight."""
    model = parse("""g (float[4,3] x) => (float[4,3] y) <float[3,2] w = {1,2,3,4,5,6}> {
        t = Transpose (w)  p = MatMul (x, w)  y = MatMul (p, t) }""")
    made = onnxgrad.open_batch(model, ["x"], verify=False)
    assert [t.name for t in made.graph.initializer] == ["w"]
    # rows of a table that are equal by its values alone become one row
    equal = parse("""g (float[2,3] x) => (float[2,3] y) <float[2,3] w = {1,2,3,1,2,3}> {
        n = Neg (w)  y = Add (x, n) }""")
    made = onnxgrad.open_batch(equal, ["x"], verify=False)
    assert made.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_operators_have_the_batch_on_axis_1(name: str) -> None:
    """The sequence is on axis 0, also if it has one step; initial states and lengths follow."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    text = f"""g (float[STEPS,1,2] x, int32[1] lens, float[1,1,3] h) => (float[STEPS,1,1,3] y) {{
        y = {name} <hidden_size = 3> (x, w, r, , lens, h) }}"""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 3 * gates, 2), "r": (1, 3 * gates, 3)}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    for steps in (5, 1):
        made = model_of(text.replace("STEPS", str(steps)), weights)
        done = onnxgrad.open_batch(made)  # proved row by row
        types = [str(v.type) for v in load_own(done).main.inputs]
        assert types == [f"f32[{steps},batch,2]", "i32[batch]", "f32[1,batch,3]"]
