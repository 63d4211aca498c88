"""What no runtime can make sense of is refused on reading, in one line that names it; what is legal is not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.ir.preflight.tensors import check_tensor
from tests.backend_suite import usable
from tests.hostile.build import external, graph, model, node, raw, tensor, value

ADD = [node("Add", "x w", "y")]
IMAGE = value("x", (1, 2, 8, 8))


def nested(depth: int) -> onnx.ModelProto:
    inner = graph([node("Relu", "x", "y0")], outputs=[value("y0", None)])
    for i in range(depth):
        choice = helper.make_node(
            "If", ["c"], [f"y{i + 1}"], then_branch=inner, else_branch=graph([])
        )
        inner = graph([choice], outputs=[value(f"y{i + 1}", None)])
    return model([node("Cast", "x", "c", to=9), *inner.node, node("Identity", f"y{depth}", "y")])


def typed(code: int) -> onnx.ModelProto:
    made = model([node("Relu", "x", "y")])
    made.graph.input[0].type.tensor_type.elem_type = code
    return made


def with_attribute(**fields: object) -> onnx.ModelProto:
    made = model([node("Concat", "x x", "y")])
    made.graph.node[0].attribute.add(name="axis", **fields)
    return made


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "input of no dtype": (typed(0), "dtype 0"),
    "input of an unknown dtype": (typed(999), "dtype 999"),
    "weight of an unknown dtype": (model(ADD, [raw("w", [1], bytes(4), 999)]), "'w' has the dtype 999"),
    "weight of no dtype": (model(ADD, [raw("w", [1], bytes(4), 0)]), "'w' has the dtype 0"),
    "Constant of an unknown dtype": (model([node("Constant", "", "y", value=raw("c", [1], bytes(4), -1))]), "dtype -1"),
    "negative size": (model(ADD, [raw("w", [-1], bytes(4))]), "the size -1"),
    "rank 300": (model(ADD, [raw("w", [1] * 300, bytes(4))]), "300 axes"),
    "input of rank 300": (model(ADD, x=value("x", [1] * 300)), "300 axes"),
    "short raw_data": (model(ADD, [raw("w", [2, 3], bytes(23))]), r"23 bytes, its sizes \(2, 3\) require 24"),
    "short float_data": (model(ADD, [TensorProto(name="w", data_type=1, dims=[2], float_data=[1])]), "1 values"),
    "huge and empty": (model(ADD, [raw("w", [2**62, 2**62])]), "holds 0 bytes"),
    "offset of 5000 digits": (model(ADD, [external("w", [2], location="a", offset="9" * 5000)]), "offset of its"),
    "length of letters": (model(ADD, [external("w", [2], location="a", length="1e3")]), "length of its"),
    "external data nowhere": (model(ADD, [external("w", [2])]), "not named"),
    "stride 0": (model([node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[0, 1])], x=IMAGE), "'strides' is"),
    "kernel 2^31": (model([node("MaxPool", "x", "y", kernel_shape=[2**31, 1])], x=IMAGE), "'kernel_shape' is"),
    "group 0": (model([node("Conv", "x w", "y", group=0)], x=IMAGE), "'group' is"),
    "group -1": (model([node("Conv", "x w", "y", group=-1)], x=IMAGE), "'group' is"),
    "a float for an axis": (with_attribute(type=AttributeProto.FLOAT, f=1.0), "is of type FLOAT, not INT"),
    "an attribute that the operator lacks": (
        model([node("Conv", "x w", "y", padding=[0, 0])], x=IMAGE), "no attribute 'padding'"
    ),
    "an attribute without type": (with_attribute(i=1), "has no type"),
    "a reference outside a function": (
        with_attribute(type=AttributeProto.INT, ref_attr_name="a"), "outside of any function"
    ),
    "nested too deep": (nested(26), "nested over 24 deep"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    made, words = REFUSED[what]
    with pytest.raises(InputError, match=f"^here: .*{words}"):
        check_model(made, "here")


@pytest.mark.slow
def test_the_suite_passes() -> None:
    for case in usable():
        check_model(case.model, case.name)


def test_legal_models_pass() -> None:
    check_model(nested(20), "here")
    check_model(model(ADD, [external("w", [2], location="a", offset="0", length="8")]), "here")


@pytest.mark.parametrize("dtype", sorted(set(TensorProto.DataType.values()) - {0, 8, 27, 28}))
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_every_dtype_in_both_forms_of_data(dtype: int, count: int) -> None:
    """helper.make_tensor knows how many entries of which field a tensor takes."""
    values = np.zeros(count, helper.tensor_dtype_to_np_dtype(dtype))
    check_tensor(numpy_helper.from_array(values, "w"), "here")
    typed = helper.make_tensor("w", dtype, [count], values)
    check_tensor(typed, "here")
    typed.dims[0] += 8
    with pytest.raises(InputError, match="is damaged"):
        check_tensor(typed, "here")


def test_strings() -> None:
    check_tensor(tensor("w", ["a", "b"], object), "here")
    with pytest.raises(InputError, match="is damaged"):
        check_tensor(TensorProto(name="w", data_type=8, dims=[3], string_data=[b"a"]), "here")
