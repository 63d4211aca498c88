"""Constants that another tool computed from a weight are named where a derivative by the weight is checked or trained."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxgrad
from onnxgrad.grad.differentiation import differentiate
from tests.helpers import parse

W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def _model(copy: np.ndarray, shape: str) -> ModelProto:
    """A penalty on a gradient whose second product another tool wrote with a constant of its own."""
    model = parse(f"""g (float[2, 4] x) => (float loss) <float[4, 3] W, float[{shape}] other> {{
        a = MatMul (x, W) b = Tanh (a) w = Reshape (other, s) c = MatMul (b, w) d = Mul (c, c) loss = ReduceSum <keepdims = 0> (d) }}""")
    for name, array in {"W": W, "other": copy, "s": np.array([3, 4])}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return model


@pytest.mark.parametrize(
    ("copy", "how"),
    [
        (W.T, "transposed"),
        (W.reshape(2, 6), "reshaped"),
        (W * np.float32(0.3), "times 0.3"),
        (W.T * np.float32(-2), "transposed times -2"),
    ],
)
def test_a_constant_made_from_a_weight_is_named(copy: np.ndarray, how: str) -> None:
    model = _model(copy, ", ".join(map(str, copy.shape)))
    report = onnxgrad.check_gradient(model, "W", "loss")
    assert any(f"'other' is 'W' {how};" in note for note in report.notes), report.notes
    step = onnxgrad.training_step(model, loss="loss", optimizer="sgd", wrt="W")
    assert any(f"'other' is 'W' {how};" in note for note in step.notes), step.notes


def test_other_constants_and_requested_ones_are_not() -> None:
    other = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    for copy, wrt in ((other, ["W"]), (W.T, ["W", "other"]), (W, ["W"])):
        model = _model(copy, ", ".join(map(str, copy.shape)))
        assert not any(
            "computed from weights" in n for n in onnxgrad.check_gradient(model, wrt, "loss").notes
        )


def _with_names(names: dict[str, str]) -> ModelProto:
    text = (
        "g (float[N, 4] x) => (float[N, 3] logits) { a = Gemm (x, W, B) n = Mul (a, first) "
        "s = Add (n, second) logits = Softmax (s) }"
    )
    for old, new in names.items():
        text = text.replace(old, new)
    model = parse(text)
    arrays = {"W": W, "B": W[0], "first": np.arange(1, 4), "second": np.zeros(3)}
    for old, array in arrays.items():
        tensor = numpy_helper.from_array(array.astype(np.float32), names.get(old, old))
        model.graph.initializer.append(tensor)
    return model


def test_vectors_without_the_name_of_a_parameter_do_not_train_silently() -> None:
    model = _with_names({"first": "clone", "second": "val_26"})
    (note,) = [n for n in onnxgrad.training_step(model, "mse").notes if "exporter kept no" in n]
    assert note.startswith("'clone' f32[3]") and "!NAME" in note
    program = onnxgrad.load(model)
    request = {"target": "logits", "adjoint": "input"}
    assert note in differentiate(program, "params", **request).notes  # a gradient says the same
    assert not differentiate(onnxgrad.load(model), ["W", "clone"], **request).notes
    without = onnxgrad.training_step(model, "mse", wrt=["params", "!clone", "!val_26"])
    assert not any("exporter kept no" in n for n in without.notes)
    # parameters by their names, and a file whose names all say nothing
    for names in (
        {"first": "scale", "second": "bias"},
        {"W": "val_1", "B": "val_2", "first": "val_3", "second": "val_4"},
    ):
        assert not any(
            "exporter kept no" in n for n in onnxgrad.training_step(_with_names(names), "mse").notes
        )


SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
SOURCES = "pkg.onnxscript.optimizer.folded_from"


@pytest.mark.parametrize(("first", "second"), [("W", ""), ("", "B"), ("W", "B"), ("", "")])
def test_folded_values_are_weights_if_the_exporter_names_a_parameter(
    first: str, second: str
) -> None:
    """torch lists the parameters, and the optimiser the values from which it computed a constant."""
    model = _with_names({"first": "clone", "second": "val_26"})
    listed = "\n".join(f"p_{n}: PARAMETER target='{n}'" for n in "WB")
    model.graph.metadata_props.add(key=SIGNATURE, value=listed)
    for name, source in (("clone", first), ("val_26", second)):
        value = onnx.helper.make_tensor_value_info(name, 1, [3])
        value.metadata_props.add(key=SOURCES, value=repr(sorted(["val_1", source or "val_2"])))
        model.graph.value_info.append(value)
    step = onnxgrad.training_step(model, "mse")
    expected = {"W", "B", *(["clone"] if first else []), *(["val_26"] if second else [])}
    assert set(onnxgrad.Trainer(step).parameters) == expected
    assert not any("exporter kept no" in n for n in step.notes)
    why = {w.name: w.why for w in onnxgrad.weights(model).left_out}
    assert first or "the exporter made it from no parameter" in why["clone"]


@pytest.mark.parametrize("called", ["(%linear, None)", "(%linear, %p_norm_weight)", ""])
def test_a_constant_that_may_be_merged_with_a_parameter_is_judged_by_its_readers(
    called: str,
) -> None:
    model = _with_names({"first": "clone", "second": "clone"})
    model.graph.metadata_props.add(key=SIGNATURE, value="p_W: PARAMETER target='W'")
    del model.graph.initializer[3]
    value = onnx.helper.make_tensor_value_info("clone", 1, [3])
    value.metadata_props.add(key=SOURCES, value="['val_2']")
    model.graph.value_info.append(value)
    for node in model.graph.node[1:3] if called else ():
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=called)
    trained = onnxgrad.Trainer(onnxgrad.training_step(model, "mse", untie="off")).parameters
    assert ("clone" in trained) == ("None" not in called)


def test_constants_by_nodes_are_no_weights_beside_named_initializers() -> None:
    """TorchScript writes parameters as initializers, and numbers of the forward pass as Constants."""
    text = (
        "g (float[N, 4] x) => (float[N, 3] logits) { a = Gemm (x, W, B) "
        "c = Constant <value = float[3] {1, 2, 3}> () logits = Mul (a, c) }"
    )
    model = parse(text)
    for name, array in {"W": W, "B": W[0]}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    names = {n.output[0]: n for n in model.graph.node}
    assert "c" in onnxgrad.Trainer(onnxgrad.training_step(model, "mse")).parameters
    model.producer_name, names["a"].name = "pytorch", "/a/Gemm"
    assert set(onnxgrad.Trainer(onnxgrad.training_step(model, "mse")).parameters) == {"W", "B"}
