"""Files that others wrote by the comments of onnx.proto become steps that run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.save import to_proto
from onnxgrad.train import Trainer, TrainingStep
from onnxgrad.train.onnx_training.training_info_reader import step_from_training_info
from onnxgrad.verify.running.run import run

INFERENCE = """
<ir_version: 7, opset_import: ["": 13, "ai.onnx.preview.training": 1]>
line (float[N, 3] x) => (float[N, 2] y) { p = MatMul (x, w)  y = Add (p, b) }
"""
# as the example of the operator Gradient in the specification, with the optimiser behind it
LOSS = """
<ir_version: 7, opset_import: ["": 13, "ai.onnx.preview.training": 1]>
step (float[N, 3] x, float[N, 2] y, float[N, 2] target) => (float loss, float[3, 2] w_new, float[2] b_new %s) {
    d = Sub (y, target)
    e = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (e)
    dw, db = ai.onnx.preview.training.Gradient <xs = ["w", "b"], zs = ["x"], y = "loss"> (w, b, x)
    %s
}
"""
ADAM = """
    w_new, b_new, wv_new, bv_new, wh_new, bh_new = ai.onnx.preview.training.Adam
        <alpha = 0.9, beta = 0.99, epsilon = 0.001, norm_coefficient = 0.01> (R, T, w, b, dw, db, wv, bv, wh, bh)
    one = Constant <value = int64 {1}> ()
    T_new = Add (T, one)
"""
MOMENTUM = """
    w_new, b_new, wv_new, bv_new = ai.onnx.preview.training.Momentum
        <alpha = 0.9, beta = 0.5, norm_coefficient = 0.0, mode = "nesterov"> (R, T, w, b, dw, db, wv, bv)
    one = Constant <value = int64 {1}> ()
    T_new = Add (T, one)
"""
ADAGRAD = """
    w_new, b_new, wh_new, bh_new = ai.onnx.preview.training.Adagrad
        <epsilon = 0.001, decay_factor = 0.1> (R, T, w, b, dw, db, wh, bh)
    one = Constant <value = int64 {1}> ()
    T_new = Add (T, one)
"""
BY_HAND = """
    sw = Mul (R, dw)
    sb = Mul (R, db)
    w_new = Sub (w, sw)
    b_new = Sub (b, sb)
"""
INITIALIZATION = """
<ir_version: 7, opset_import: ["": 13]>
init () => (float[3, 2] w0) { w0 = RandomNormal <shape = [3, 2], seed = 3.0, scale = 0.5> () }
"""
STATES = {"wv": (3, 2), "bv": (2,), "wh": (3, 2), "bh": (2,)}


def tensor(name: str, value: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def model(
    update: str, states: tuple[str, ...] = (), counts: bool = True, rate: Any = 0.1
) -> onnx.ModelProto:
    """The inference graph with training_info; all that the update names is an initializer."""
    found = onnx.parser.parse_model(INFERENCE)
    w = np.random.default_rng(0).standard_normal((3, 2))
    found.graph.initializer.extend([tensor("w", w), tensor("b", [0.5, -0.5])])
    outputs = "".join(f", float{list(STATES[s])} {s}_new" for s in states)
    outputs += ", int64 T_new" if counts else ""
    info = found.training_info.add()
    algorithm = onnx.parser.parse_model(LOSS % (outputs, update)).graph
    del algorithm.input[:2]  # values of the inference graph, which the text had to declare
    algorithm.initializer.extend(tensor(s, np.zeros(STATES[s])) for s in states)
    if rate is None:
        algorithm.input.append(helper.make_tensor_value_info("R", 1, [1]))
    else:
        algorithm.initializer.append(tensor("R", rate))
    if counts:
        algorithm.initializer.append(tensor("T", 0, np.int64))
    info.algorithm.CopyFrom(algorithm)
    for name in ("w", "b", *states, *(["T"] if counts else [])):
        info.update_binding.add(key=name, value=f"{name}_new")
    return found


def with_initialization(found: onnx.ModelProto) -> onnx.ModelProto:
    info = found.training_info[0]
    info.initialization.CopyFrom(onnx.parser.parse_model(INITIALIZATION).graph)
    info.initialization_binding.add(key="w", value="w0")
    return found


def batches(count: int = 10) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {"x": rng.standard_normal((n, 3), np.float32), "target": rng.standard_normal((n, 2), np.float32)}
        for n in rng.integers(1, 9, count)
    ]  # fmt: skip


def trained(step: TrainingStep, rate: float | None = None) -> tuple[list[float], Any]:
    trainer = Trainer(step, rate, threads=1)
    return trainer.fit(batches()).losses, trainer.parameters


def adam(p: Any, g: Any, s: dict[str, Any], t: int, r: float) -> Any:
    g = 0.01 * p + g
    s["v"], s["h"] = 0.9 * s["v"] + 0.1 * g, 0.99 * s["h"] + 0.01 * g * g
    r = r * np.sqrt(1 - 0.99**t) / (1 - 0.9**t) if t else r
    return p - r * s["v"] / (np.sqrt(s["h"]) + 0.001)


def momentum(p: Any, g: Any, s: dict[str, Any], t: int, r: float) -> Any:
    s["v"] = 0.9 * s["v"] + (0.5 if t else 1.0) * g
    return p - r * (g + 0.9 * s["v"])


def adagrad(p: Any, g: Any, s: dict[str, Any], t: int, r: float) -> Any:
    s["h"] = s["h"] + g * g
    return p - r / (1 + 0.1 * t) * g / (np.sqrt(s["h"]) + 0.001)


def sgd(p: Any, g: Any, s: dict[str, Any], t: int, r: float) -> Any:
    return p - r * g


def expected(rule: Any, rate: float, w: Any = None) -> tuple[list[float], Any]:
    """The same in numpy, in float64, by the formulas of the specification."""
    start = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    p = {"w": np.float64(start if w is None else w), "b": np.array([0.5, -0.5])}
    s = {name: {"v": np.zeros(a.shape), "h": np.zeros(a.shape)} for name, a in p.items()}
    losses = []
    for t, batch in enumerate(batches()):
        d = batch["x"] @ p["w"] + p["b"] - batch["target"]
        losses.append(float((d * d).mean()))
        dy = 2 * d / d.size
        gradients = {"w": batch["x"].T @ dy, "b": dy.sum(0)}
        p = {name: rule(a, gradients[name], s[name], t, rate) for name, a in p.items()}
    return losses, p


@pytest.mark.parametrize(
    ("update", "states", "rule"),
    [
        (ADAM, ("wv", "bv", "wh", "bh"), adam),
        (MOMENTUM, ("wv", "bv"), momentum),
        (ADAGRAD, ("wh", "bh"), adagrad),
    ],
)
def test_the_standards_optimisers(update: str, states: tuple[str, ...], rule: Any) -> None:
    file = model(update, states)
    onnx.checker.check_model(file)
    step = step_from_training_info(file)
    assert step.manifest.optimizer["lr"] == pytest.approx(0.1)
    found, parameters = trained(step)
    losses, wanted = expected(rule, 0.1)
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    for name, value in wanted.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-4, atol=1e-6)
    assert trained(step, 0.02)[0] == pytest.approx(expected(rule, 0.02)[0], rel=2e-5)


def test_what_is_what() -> None:
    step = step_from_training_info(model(ADAM, ("wv", "bv", "wh", "bh")))
    roles = {fed.name: fed.role for fed in step.manifest.inputs}
    assert roles == {
        "x": "batch", "target": "batch", "w": "parameter", "b": "parameter", "wv": "state", "bv": "state",
        "wh": "state", "bh": "state", "T": "state", "R": "learning_rate",
    }  # fmt: skip
    proto = to_proto(step.train)
    onnx.checker.check_model(proto, full_check=True)
    assert all(not node.domain for node in proto.graph.node)
    assert {v.name for v in step.evaluation.main.outputs} == {"y", "loss"}
    assert {v.name for v in step.evaluation.main.inputs} == {"x", "target", "w", "b"}


def test_a_rate_and_a_count_that_are_inputs() -> None:
    file = model(
        ADAM.replace("T_new = Add (T, one)", ""), ("wv", "bv", "wh", "bh"), counts=False, rate=None
    )
    file.training_info[0].algorithm.input.append(helper.make_tensor_value_info("T", 7, []))
    step = step_from_training_info(file)
    assert [fed.role for fed in step.manifest.inputs][-2:] == ["step", "learning_rate"]
    assert trained(step, 0.1)[0] == pytest.approx(expected(adam, 0.1)[0], rel=2e-5)


def test_an_update_by_ordinary_operators() -> None:
    file = model(BY_HAND, counts=False)
    losses, _ = trained(step_from_training_info(file))
    assert losses == pytest.approx(expected(sgd, 0.1)[0], rel=2e-5)
    # the file's own rate holds, unless it is told which one it is
    with pytest.raises(InputError, match="takes no learning rate"):
        trained(step_from_training_info(file), 0.7)
    told = step_from_training_info(file, learning_rate="R")
    assert trained(told, 0.02)[0] == pytest.approx(expected(sgd, 0.02)[0], rel=2e-5)


def test_initialization_is_run_unless_told_otherwise() -> None:
    file = with_initialization(model(BY_HAND, counts=False))
    start = run(onnx.parser.parse_model(INITIALIZATION), {})["w0"]
    step = step_from_training_info(file)
    np.testing.assert_array_equal(step.initial["w"], start)
    assert trained(step)[0] == pytest.approx(expected(sgd, 0.1, start)[0], rel=2e-5)
    kept = step_from_training_info(file, initialize=False)
    assert trained(kept)[0] == pytest.approx(expected(sgd, 0.1)[0], rel=2e-5)


def test_the_trained_weights_come_back_into_the_file() -> None:
    file = model(BY_HAND, counts=False)
    trainer = Trainer(step_from_training_info(file), threads=1)
    trainer.fit(batches())
    after = trainer.export(file)
    weights = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    np.testing.assert_array_equal(weights["w"], trainer.parameters["w"])
    assert after.training_info == file.training_info


def changed(what: str) -> onnx.ModelProto:
    file = model(BY_HAND, counts=False)
    info = file.training_info[0]
    if what == "none":
        del file.training_info[:]
    elif what == "two":
        file.training_info.add().CopyFrom(info)
    elif what == "twice":
        info.update_binding.add(key="w", value="w_new")
    elif what == "key":
        info.update_binding.add(key="p", value="w_new")
    elif what == "value":
        info.update_binding[0].value = "sw"
    elif what == "empty":
        del info.update_binding[:]
    elif what == "initialization":
        info.initialization_binding.add(key="w", value="w0")
    elif what == "shape":
        with_initialization(file).training_info[0].initialization_binding[0].key = "b"
    elif what == "name":
        info.algorithm.node[0].output[0] = "p"
    return file


@pytest.mark.parametrize(
    ("what", "options", "words"),
    [
        ("none", {}, "has no training_info"),
        ("two", {}, "2 entries of training_info"),
        ("two", {"number": 2}, "number=2: the model has 2"),
        ("twice", {}, "names 'w' twice"),
        ("key", {}, "'p', which is no initializer"),
        ("value", {}, "'sw', which is no output"),
        ("empty", {}, "changes nothing"),
        ("initialization", {}, "'w0', which is no output of initialization"),
        ("shape", {}, r"makes 'b' of shape \[3, 2\]"),
        ("name", {}, "'p'"),
        ("", {"loss": "q"}, "the loss 'q' is no value"),
        ("", {"loss": "y"}, r"the loss 'y' is .*, not a number"),
        ("", {"learning_rate": "w"}, "learning rate 'w' is no input"),
        ("", {"learning_rate": "q"}, "learning rate 'q' is no input"),
    ],
)
def test_files_that_contradict_themselves(what: str, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        step_from_training_info(changed(what), **options)


def test_one_of_two_entries() -> None:
    step = step_from_training_info(changed("two"), number=1)
    assert trained(step)[0] == pytest.approx(expected(sgd, 0.1)[0], rel=2e-5)


def test_a_loss_that_nobody_names() -> None:
    file = model(BY_HAND, counts=False)
    algorithm = file.training_info[0].algorithm
    algorithm.output.append(helper.make_tensor_value_info("R", 1, []))
    for i, node in enumerate(algorithm.node):
        if node.op_type == "Gradient":
            zeros = [helper.make_node("Sub", [n, n], [f"d{n}"]) for n in "wb"]
            algorithm.node[i].CopyFrom(zeros[0])
    algorithm.node.append(zeros[1])
    with pytest.raises(InputError, match=r"nothing says which value .* \(loss, R\)"):
        step_from_training_info(file)
