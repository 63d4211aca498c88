"""Copies of a layer, one layer under several names and constants that equal a parameter, as torch names them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.grad.weights.test_repairs import DEEP, TABLE, language, losses, step_of, trained_names

COPIES = """
    e = Gather (embed, x)
    h1 = MatMul (e, val_0)
    n1 = LayerNormalization (h1, layers.0.norm.weight, layers.0.norm.bias)
    h2 = MatMul (n1, val_0)
    n2 = LayerNormalization (h2, layers.0.norm.weight, layers.0.norm.bias)
    y = MatMul (n2, head)
"""


def called(*parameters: str) -> onnx.ModelProto:
    """A default export of two layers; `parameters`: the modules that the calls of the products and
    normalisations name, in order.
    """
    constants = {
        "embed": TABLE, "head": TABLE.T, "val_0": DEEP["one.weight"],
        "layers.0.norm.weight": np.ones(8), "layers.0.norm.bias": np.zeros(8),
    }  # fmt: skip
    model = language(constants, COPIES)
    nodes = [n for n in model.graph.node if n.op_type in ("MatMul", "LayerNormalization")][:4]
    around = ("layers.0.lin", "layers.0.norm", "layers.1.lin", "layers.1.norm")
    for node, name, module in zip(nodes, parameters, around, strict=True):
        leaves = ["weight", "bias"][: 1 if node.op_type == "MatMul" else 2]
        args = ", ".join(f"%p_{name.replace('.', '_')}_{leaf}" for leaf in leaves)
        call = f"call_function[target=aten.op](args = (%x, {args}))"
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=call)
        scopes = repr(["", module.rpartition(".")[0], module, "op"])
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    return model


LAYERS = ("layers.0.lin", "layers.0.norm", "layers.1.lin", "layers.1.norm")


def test_copies_of_a_layer_train_by_themselves() -> None:
    """nn.TransformerEncoder's layers start equal; embedding and head stay one parameter."""
    model = called(*LAYERS)
    step = step_of(model)
    second = {"val_0.layers.1.lin.weight", "layers.1.norm.weight", "layers.1.norm.bias"}
    assert trained_names(step) == {
        "embed", "val_0", "layers.0.norm.weight", "layers.0.norm.bias", *second
    }  # fmt: skip
    assert "'val_0' stands for 2 parameters that start equal" in "\n".join(step.notes)
    _, trainer = losses(step)
    arrays = {t.name: numpy_helper.to_array(t) for t in trainer.export(model).graph.initializer}
    assert not np.array_equal(arrays["val_0"], arrays["val_0.layers.1.lin.weight"])
    assert np.array_equal(arrays["head"], arrays["embed"].T)
    assert "val_0.layers.1.lin.weight" not in trained_names(step_of(model, untie="off"))


@pytest.mark.parametrize("plain", ["(%x, [8])", "(%x, [8], None, None, 1e-05)", "(%x, [8], %w)"])
def test_a_parameter_is_separated_from_equal_ones_that_are_none(plain: str) -> None:
    """A normalisation without a scale reads the ones of another's, if its call names one value."""
    model = called(*LAYERS)
    listed = "p_layers_0_norm_weight: PARAMETER target='layers.0.norm.weight'"
    model.graph.metadata_props.add(
        key="pkg.torch.export.ExportedProgram.graph_signature", value=listed
    )
    value = onnx.helper.make_tensor_value_info("layers.0.norm.weight", 1, [8])
    value.metadata_props.add(
        key="pkg.torch.export.graph_signature.InputSpec.kind", value="PARAMETER"
    )
    model.graph.value_info.append(value)
    second = [n for n in model.graph.node if n.op_type == "LayerNormalization"][1]
    second.metadata_props[
        0
    ].value = f"call_function[target=aten.layer_norm.default](args = {plain})"
    step = step_of(model)
    names = {n for n in trained_names(step) if "norm" in n}
    if "%w" in plain:
        assert len(names) == 4
        return
    assert names == {"layers.0.norm.weight", "layers.0.norm.bias"}
    assert not any("norm.weight' stands for" in n for n in step.notes)
    _, trainer = losses(step)
    written = trainer.export(model)
    arrays = {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}
    assert np.array_equal(arrays["layers.0.norm.weight.constant"], np.ones(8))
    assert not np.array_equal(arrays["layers.0.norm.weight"], np.ones(8))


@pytest.mark.parametrize("first", [0, 1])
def test_one_layer_under_two_numbers_stays_one(first: int) -> None:
    """nn.ModuleList([layer, layer]): the calls of both name the parameters alike, by either name."""
    names = (f"layers.{first}.lin", f"layers.{first}.norm") * 2
    step = step_of(called(*names))
    assert trained_names(step) == {"embed", "val_0", "layers.0.norm.weight", "layers.0.norm.bias"}
    assert not any("stands for" in n or "several layers" in n for n in step.notes)


@pytest.mark.parametrize("second", ["proj", "layers.1.out", "layers.lin", "other.1.lin"])
def test_equal_matrices_of_other_names_are_a_question(second: str) -> None:
    step = step_of(called("layers.0.lin", "layers.0.norm", second, "layers.1.norm"))
    assert "val_0" in trained_names(step)
    assert not any(name.startswith("val_0.") for name in trained_names(step))
    assert "several layers read 'val_0'" in "\n".join(step.notes)


def test_torchscript_names_copies_by_identities() -> None:
    """Merged vectors have the names of both parameters; a folded matrix has none, only its layers'."""
    body = COPIES.replace("MatMul (n1, val_0)", "MatMul (n1, second)")
    constants = {
        "embed": TABLE, "head": TABLE.T, "layers.0.lin.weight": DEEP["one.weight"],
        "layers.0.norm.weight": np.ones(8), "layers.0.norm.bias": np.zeros(8),
    }  # fmt: skip
    body = body.replace("val_0", "layers.0.lin.weight")
    model = language(constants, f"second = Identity (layers.0.lin.weight) {body}")
    model.producer_name = "pytorch"
    products = [n for n in model.graph.node if n.op_type == "MatMul"]
    for i, node in enumerate(products[:2]):
        node.name = f"/layers.{i}/lin/MatMul"

    def trained_as(name: str) -> Any:
        named = onnx.ModelProto.FromString(model.SerializeToString())
        for node in named.graph.node:
            for names in (node.input, node.output):
                names[:] = [name if n == "second" else n for n in names]
        return step_of(named)

    assert "layers.1.lin.weight" in trained_names(trained_as("layers.1.lin.weight"))
    step = trained_as("onnx::MatMul_58")
    assert not any("lin" in name for name in trained_names(step) - {"layers.0.lin.weight"})
    assert "several layers read 'layers.0.lin.weight'" in "\n".join(step.notes)
