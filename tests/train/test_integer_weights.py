"""Integer weights of quantised files train as floats and are written back as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.export import KEY
from onnxgrad.verify.running.session import run
from tests.helpers import parse

# the weight of a product as it is stored: dtype, constants and operands of its DequantizeLinear
KINDS = {
    "one scale": ("int8", "float ws={0.1}, int8 wz={0}", "(q, ws, wz)"),
    "a scale per column": (
        "int8",
        "float[3] ws={0.1,0.2,0.05}, int8[3] wz={0,0,0}, float[3] bs={0.005,0.01,0.0025}",
        "<axis=1>(q, ws, wz)",
    ),
    "a zero point": ("uint8", "float ws={0.1}, uint8 wz={7}", "(q, ws, wz)"),
    "no zero point": ("int8", "float ws={0.1}", "(q, ws)"),
    "four bits": ("int4", "float ws={0.1}, int4 wz={1}", "(q, ws, wz)"),
    "sixteen bits": ("int16", "float ws={0.01}, int16 wz={0}", "(q, ws, wz)"),
}
X = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
TARGET = (X @ np.ones((4, 3)) - 0.25).astype(np.float32)
DATA = {"x": X, "target": TARGET}


def model(kind: str) -> onnx.ModelProto:
    """A product with a bias of 32 bits, behind quantised inputs."""
    dtype, constants, operands = KINDS[kind]
    if " bs=" not in constants:  # onnxruntime takes the product of both scales for that of a bias
        constants += f", float bs={{{0.0005 if kind == 'sixteen bits' else 0.005}}}"
    made = parse(
        f"""g (float[N,4] x) => (float[N,3] y)
        <{constants}, float xs={{0.05}}, int8 xz={{0}}> {{
        xq = QuantizeLinear (x, xs, xz)  xd = DequantizeLinear (xq, xs, xz)
        w = DequantizeLinear {operands}  bd = DequantizeLinear <axis=0> (b, bs)
        p = MatMul (xd, w)  y = Add (p, bd) }}""",
        opset=21,
    )
    rng = np.random.default_rng(1)
    for name, stored, shape in (("q", dtype, (4, 3)), ("b", "int32", (3,))):
        number = onnx.TensorProto.DataType.Value(stored.upper())
        values = rng.integers(0 if stored[0] == "u" else -7, 8, shape)
        values = values.astype(onnx.helper.tensor_dtype_to_np_dtype(number))
        made.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.checker.check_model(made)
    return made


def arrays(made: onnx.ModelProto) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_moves_nothing_writes_the_same_file(kind: str) -> None:
    before = model(kind)
    after = onnxgrad.fit(before, DATA, "mse", "sgd", rate=0.0, epochs=1, ste=True)
    assert [p.key for p in after.metadata_props] == [KEY]
    del after.metadata_props[:]
    assert after == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_computes_what_was_evaluated(kind: str) -> None:
    before = model(kind)
    step = onnxgrad.training_step(before, "mse", "sgd", ste=True)
    trainer = onnxgrad.Trainer(step, rate=0.2)
    first = trainer.evaluate(DATA)["loss"]
    trainer.fit(DATA, epochs=40)
    assert trainer.evaluate(DATA)["loss"] < 0.5 * first
    after = trainer.export(before)
    old, new = arrays(before), arrays(after)
    assert {n for n in old if not np.array_equal(old[n], new[n])} == {"q", "b"}
    assert {n: a.dtype for n, a in old.items()} == {n: a.dtype for n, a in new.items()}
    written = run(after, {"x": X}, optimize=False)["y"]
    predicted = trainer.predict({"x": X})["y"]
    assert np.abs(written - predicted).max() <= 1e-6 * np.abs(predicted).max()


def test_one_step_is_that_of_the_formula() -> None:
    """A step of gradient descent on the floats, by x^T g of the rounded network."""
    before = model("one scale")
    held = arrays(before)
    xd = np.clip(np.rint(X / 0.05), -128, 127) * np.float32(0.05)
    w, b = held["q"] * np.float32(0.1), held["b"] * np.float32(0.005)
    g = 2 * (xd @ w + b - TARGET) / TARGET.size
    trainer = onnxgrad.Trainer(onnxgrad.training_step(before, "mse", "sgd{lr=0.5}", ste=True))
    trainer.step(DATA)
    assert np.allclose(trainer.parameters["q"], w - 0.5 * xd.T @ g, atol=1e-6)
    assert np.allclose(trainer.parameters["b"], b - 0.5 * g.sum(0), atol=1e-6)
    after = arrays(trainer.export(before))
    assert np.array_equal(after["q"], np.rint((w - 0.5 * xd.T @ g) / np.float32(0.1)))


def test_without_the_option_the_refusal_names_it() -> None:
    with pytest.raises(InputError, match="ste=True trains stored integers"):
        onnxgrad.training_step(model("one scale"), "mse")


def test_integers_with_a_scale_per_block_stay() -> None:
    blocks = parse(
        """g (float[N,4] x) => (float[N,3] y)
        <int8[4,3] q={1,2,3,4,5,6,7,8,9,1,2,3}, float[2,3] ws={1,1,1,2,2,2}, float[3] c={1,2,3}> {
        w = DequantizeLinear <axis=0, block_size=2> (q, ws)
        p = MatMul (x, w)  y = Add (p, c) }""",
        opset=21,
    )
    step = onnxgrad.training_step(blocks, "mse", wrt=["c"], ste=True)
    assert [fed.name for fed in step.manifest.of_role("parameter")] == ["c"]
    with pytest.raises(InputError, match="one scale per tensor or axis"):
        onnxgrad.training_step(blocks, "mse", ste=True)


def test_the_command(tmp_path: Any, capsys: Any) -> None:
    from onnxgrad.cli.app import main

    file, out, data = tmp_path / "q.onnx", tmp_path / "out.onnx", tmp_path / "d.npz"
    onnx.save(model("a scale per column"), file)
    np.savez(data, **DATA)
    words = ["fit", file, "--data", data, "--loss", "mse", "--epochs", "2", "--ste", "-o", out]
    assert main([str(w) for w in words]) == 0
    assert "an estimate" in "".join(capsys.readouterr())
    assert arrays(onnx.load(out))["q"].dtype == np.int8


def test_integers_before_a_reshape_train() -> None:
    """onnxruntime itself opens no such file from opset 21 on."""
    made = parse(
        """g (float[N,8] x) => (float[N,4] y)
        <float xs={0.05}, int8 xz={0}, float ws={0.1}, int8[4] q={1,-2,3,4}> {
        xq = QuantizeLinear (x, xs, xz)  xd = DequantizeLinear (xq, xs, xz)
        s = Constant <value_ints = [0, 2, 4]> ()  r = Reshape (xd, s)
        w = DequantizeLinear (q, ws, xz)  p = Mul (r, w)
        y = ReduceSum <keepdims = 0> (p, one) }""",
        opset=21,
    )
    made.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    data = {"x": x, "target": x[:, :4] + x[:, 4:]}
    done = onnxgrad.fit(made, data, "mse", "adam", rate=0.05, epochs=60, ste=True, report=True)
    assert done.history.losses[-1] < 0.01 * done.history.losses[0]
    assert arrays(done.model)["q"].tolist() == [10, 10, 10, 10]


def quantised_from(kind: str, floats: dict[str, Any]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A quantised model with the names of onnxruntime's quantiser, and a float model."""
    quantised = model(kind)
    for node in quantised.graph.node:
        node.input[:] = [f"{n}_quantized" if n in ("q", "b") else n for n in node.input]
    for t in quantised.graph.initializer:
        t.name = f"{t.name}_quantized" if t.name in ("q", "b") else t.name
    plain = parse("g (float[N,4] x) => (float[N,3] y) { p = MatMul (x, q)  y = Add (p, b) }")
    plain.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in floats.items())
    return quantised, plain


def floats_of(kind: str) -> dict[str, Any]:
    """Floats of which `model(kind)` has the integers: a third of a step from them."""
    trainer = onnxgrad.Trainer(onnxgrad.training_step(model(kind), "mse", "sgd", ste=True))
    held, found = arrays(model(kind)), trainer.parameters
    return {n: found[n] + held[s] / np.float32(3) for n, s in (("q", "ws"), ("b", "bs"))}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_start_from_the_model_that_was_quantised(kind: str) -> None:
    """Their floats, and still the integers of the file."""
    floats = floats_of(kind)
    quantised, plain = quantised_from(kind, floats)
    step = onnxgrad.training_step(quantised, "mse", "sgd", ste=True, original=plain)
    assert "original=: 2 weights start from its floats" in step.notes
    assert np.array_equal(step.initial["q_quantized"], floats["q"])
    assert np.array_equal(step.initial["b_quantized"], floats["b"])
    written = arrays(onnxgrad.Trainer(step).export(quantised))
    assert all(np.array_equal(a, written[n]) for n, a in arrays(quantised).items())


def test_a_weight_of_another_name_is_found_by_its_values() -> None:
    floats = floats_of("a zero point")
    quantised, _ = quantised_from("a zero point", floats)
    other = floats["q"] + np.float32(0.1)  # a step away
    given = {"other": other, "weight": floats["q"], "bias": floats["b"], "copy": floats["q"]}
    plain = parse("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")
    plain.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in given.items())
    step = onnxgrad.training_step(quantised, "mse", "sgd", ste=True, original=plain)
    assert np.array_equal(step.initial["q_quantized"], floats["q"])
    assert np.array_equal(step.initial["b_quantized"], floats["b"])


def test_elements_that_round_to_other_integers_start_from_the_file() -> None:
    floats = floats_of("one scale")
    right = floats["q"].copy()
    floats["q"][0] += np.float32(0.1)  # three of twelve
    quantised, plain = quantised_from("one scale", floats)
    step = onnxgrad.training_step(quantised, "mse", "sgd", ste=True, original=plain)
    assert any("than the file has: 25.0% of 'q_quantized'" in note for note in step.notes)
    assert np.array_equal(step.initial["q_quantized"][1:], right[1:])
    held = arrays(quantised)["q_quantized"][0] * np.float32(0.1)
    assert np.array_equal(step.initial["q_quantized"][0], held)


def test_a_weight_without_one_counterpart_is_refused() -> None:
    floats = floats_of("one scale")
    quantised, _ = quantised_from("one scale", floats)
    near = floats["q"] + np.float32(0.001)
    for given, message in (
        ({"bias": floats["b"]}, r"no weight of it, of shape \[4, 3\], rounds to 'q_quantized'"),
        ({"v": floats["q"], "w": near}, "several of its weights round to 'q_quantized': v, w;"),
    ):
        plain = parse("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")
        given = {"bias": floats["b"], **given}
        plain.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in given.items())
        with pytest.raises(InputError, match=message):
            onnxgrad.training_step(quantised, "mse", ste=True, original=plain)
    with pytest.raises(InputError, match="the model stores no integers"):
        onnxgrad.training_step(plain, lambda v: v["y"], ste=True, original=plain)


@pytest.mark.parametrize("command", ["fit", "train-step"])
def test_the_commands_read_the_float_model(command: str, tmp_path: Any, capsys: Any) -> None:
    from onnxgrad.cli.app import main

    quantised, plain = quantised_from("one scale", floats_of("one scale"))
    file, floats, data = (str(tmp_path / n) for n in ("q.onnx", "float.onnx", "d.npz"))
    onnx.save(quantised, file)
    onnx.save(plain, floats)
    np.savez(data, **DATA)
    words = [command, file, "--loss", "mse", "--ste", "--original", floats, "-o"]
    words += [str(tmp_path / "out"), *(["--data", data] if command == "fit" else [])]
    assert main(words) == 0
    assert "--original: 2 weights start from its floats" in capsys.readouterr().out


LEARNT: dict[str, dict[str, Any]] = {
    "graph": {},
    "update of micro-batches": {"accumulate": 2},
    "moving average": {"average": 0.5},
    "float16": {"loss_scale": 1.0},
}


@pytest.mark.parametrize("form", LEARNT)
def test_learnt_scales_stay_positive(form: str) -> None:
    """A step of this rate towards outputs of 0 would make each scale of clipped values negative."""
    dtype = "float16" if form == "float16" else "float"
    clipping = parse(
        f"""g ({dtype}[N,3] x) => ({dtype}[N,3] y) <int8[3] zero={{0,0,0}}> {{
        q = QuantizeLinear <axis=1> (x, scale, zero)  y = DequantizeLinear <axis=1> (q, scale, zero)
        }}""",
        opset=21,
    )
    start = np.array([0.1, 0.2, 0.05], np.float16 if form == "float16" else np.float32)
    clipping.graph.initializer.append(numpy_helper.from_array(start, "scale"))
    options = LEARNT[form]
    step = onnxgrad.training_step(
        clipping, "mse", "sgd{lr=100}", wrt=["scale"], ste=True, **options
    )
    trainer = onnxgrad.Trainer(step)
    x = np.full((4, 3), 1000, start.dtype)
    least = np.maximum(start / 1024, np.finfo(start.dtype).tiny).astype(start.dtype)
    for number in range(1, 5):
        trainer.step({"x": x, "target": np.zeros_like(x)})
        moved = number >= options.get("accumulate", 1)
        assert np.array_equal(trainer.parameters["scale"], least if moved else start)
    with pytest.raises(InputError, match="no scale of a quantisation"):
        onnxgrad.Trainer(step, engine="blocks")


def product() -> onnx.ModelProto:
    """A quantised product without a bias."""
    return parse(
        """g (float[N,4] x) => (float[N,3] y)
        <float xs={0.05}, int8 xz={0}, float[3] ws={0.1,0.2,0.05}, int8[3] wz={0,0,0},
        int8[4,3] q={3,-7,2,5,1,-4,6,-2,7,-5,4,3}> {
        xq = QuantizeLinear (x, xs, xz)  xd = DequantizeLinear (xq, xs, xz)
        w = DequantizeLinear <axis=1>(q, ws, wz)  y = MatMul (xd, w) }""",
        opset=21,
    )


def test_integers_are_those_of_learnt_scales() -> None:
    before = product()
    step = onnxgrad.training_step(before, "mse", "adam{lr=0.01}", wrt=["params", "ws"], ste=True)
    trainer = onnxgrad.Trainer(step)
    trainer.fit(DATA, epochs=20)
    after = trainer.export(before)
    assert np.abs(arrays(after)["ws"] / arrays(before)["ws"] - 1).min() > 0.05
    written = run(after, {"x": X}, optimize=False)["y"]
    predicted = trainer.predict({"x": X})["y"]
    assert np.abs(written - predicted).max() <= 1e-6 * np.abs(predicted).max()


def test_a_scale_whose_product_scales_a_bias_stays() -> None:
    for name in ("ws", "xs"):
        with pytest.raises(InputError, match=f"'{name}' cannot train: the scale of the bias"):
            onnxgrad.training_step(model("one scale"), "mse", wrt=["params", name], ste=True)


def test_a_model_without_quantisation_is_named() -> None:
    plain = parse(
        "g (float[N,4] x) => (float[N,1] y) <float[4,1] w={1,2,3,4}> { y = MatMul (x, w) }"
    )
    step = onnxgrad.training_step(plain, "mse", ste=True)
    assert any(note.startswith("ste=True changes nothing") for note in step.notes)
