"""Files that onnxgrad wrote become steps that run; training_info of others, or changed since, is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.plugins.onnx_training.training_info_reader import step_from_training_info
from onnxgrad.plugins.onnx_training.training_info_writer import KEY, with_training_info
from onnxgrad.train import SGD, Trainer
from tests.train.common import classifier, examples, step

INFERENCE = """
<ir_version: 7, opset_import: ["": 13, "ai.onnx.preview.training": 1]>
line (float[N, 3] x) => (float[N, 2] y) { p = MatMul (x, w)  y = Add (p, b) }
"""
# as the example of the operator Gradient in the specification, with a step of descent behind it
ALGORITHM = """
<ir_version: 7, opset_import: ["": 13, "ai.onnx.preview.training": 1]>
step (float[N, 3] x, float[N, 2] y, float[N, 2] target) => (float loss, float[3, 2] w_new, float[2] b_new) {
    d = Sub (y, target)
    e = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (e)
    dw, db = ai.onnx.preview.training.Gradient <xs = ["w", "b"], zs = ["x"], y = "loss"> (w, b, x)
    sw = Mul (R, dw)
    sb = Mul (R, db)
    w_new = Sub (w, sw)
    b_new = Sub (b, sb)
}
"""


def of_another_tool() -> onnx.ModelProto:
    """By the comments of onnx.proto alone."""
    model = onnx.parser.parse_model(INFERENCE)
    w = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.zeros(2, np.float32), "b")]
    )
    info = model.training_info.add()
    info.algorithm.CopyFrom(onnx.parser.parse_model(ALGORITHM).graph)
    del info.algorithm.input[:2]  # values of the inference graph, which the text had to declare
    info.algorithm.initializer.append(numpy_helper.from_array(np.float32(0.1), "R"))
    for name in ("w", "b"):
        info.update_binding.add(key=name, value=f"{name}_new")
    onnx.checker.check_model(model)
    return model


def written() -> onnx.ModelProto:
    """The momentum of SGD is a state, and `initialization` resets it."""
    return with_training_info(classifier(), step(SGD(lr=0.1, momentum=0.9)))


def test_training_info_of_another_tool() -> None:
    with pytest.raises(InputError, match=r"is not onnxgrad's .* with training_step$") as error:
        step_from_training_info(of_another_tool())
    assert "\n" not in str(error.value)


def test_states_begin_as_initialization_says_unless_told_otherwise() -> None:
    model = written()
    buffer = next(
        t for t in model.training_info[0].algorithm.initializer if "momentum_buffer" in t.name
    )
    moved = np.full(tuple(buffer.dims), 0.5, np.float32)
    buffer.CopyFrom(numpy_helper.from_array(moved, buffer.name))
    assert not step_from_training_info(model).initial[buffer.name].any()
    kept = step_from_training_info(model, initialize=False)
    np.testing.assert_array_equal(kept.initial[buffer.name], moved)


def test_the_trained_weights_come_back_into_the_file() -> None:
    model = written()
    trainer = Trainer(step_from_training_info(model), threads=1)
    trainer.fit([examples(16, i) for i in range(3)])
    after = trainer.export(model)
    weights = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(weights[name], value)
    assert after.training_info == model.training_info


def changed(what: str) -> onnx.ModelProto:
    model = written()
    info = model.training_info[0]
    first = info.update_binding[0]
    if what == "none":
        del model.training_info[:]
    elif what == "two":
        model.training_info.add().CopyFrom(info)
    elif what == "twice":
        info.update_binding.add(key=first.key, value=info.update_binding[1].value)
    elif what == "key":
        first.key = "p"
    elif what == "value":
        first.value = "p"
    elif what == "output":
        del info.algorithm.output[:]
    elif what == "initializer":
        del info.algorithm.initializer[:]
    elif what == "empty":
        del info.update_binding[:]
    elif what == "counter":
        del info.update_binding[-1]
    elif what == "initialization":
        info.initialization_binding[0].value = "p"
    elif what == "variable":
        info.initialization_binding[0].key = "p"
    elif what == "shape":
        info.initialization_binding[0].key = info.update_binding[-1].key
    elif what == "metadata":
        next(e for e in model.metadata_props if e.key == KEY).value = "{}"
    else:
        entry = next(e for e in model.metadata_props if e.key == KEY)
        entry.value = entry.value.replace('"loss": "loss"', f'"loss": "{what}"')
    return model


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("none", "has no training_info"),
        *((w, "was changed since onnxgrad wrote it") for w in
          ("two", "twice", "key", "value", "output", "initializer", "empty", "counter")),
        ("initialization", "the value 'p': one of them is missing"),
        ("variable", "gives 'p' the value .*: one of them is missing"),
        ("shape", "initialization makes .* of shape"),
        ("metadata", "not the manifest of a training step"),
        ("nowhere", "names 'nowhere', which the training graph does not have"),
    ],
)  # fmt: skip
def test_files_that_were_changed(what: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        step_from_training_info(changed(what))
    assert "\n" not in str(error.value)


def test_options_that_guessed_roles_are_unknown() -> None:
    for option in ("loss", "learning_rate", "number"):
        given: Any = {option: "loss"}
        with pytest.raises(InputError, match=option):
            step_from_training_info(written(), **given)


def test_the_rate_is_no_input_of_evaluation() -> None:
    made = step_from_training_info(written())
    rate, inputs = made.manifest.of_role("learning_rate")[0], made.evaluation.main.inputs
    assert rate.name not in {v.name for v in inputs}
    assert {"x", "labels", "w1"} <= {v.name for v in inputs}
