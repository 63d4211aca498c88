"""Values as the float64 reference holds them, and nodes with a call's attributes in the place of references."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxgrad.verify.values import attribute_value, bind, dense, type_of, widen


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats_are_widened_exactly(dtype: Any) -> None:
    narrow = np.array([0.1, -2.0, np.inf, np.nan], dtype)
    wide = widen(narrow)
    assert wide.dtype == np.float64
    assert wide.astype(dtype).tobytes() == narrow.tobytes()


@pytest.mark.parametrize(
    "value", [np.arange(3), np.array([True]), np.array(["a"], object), np.zeros(2), None, "text"]
)
def test_anything_else_is_as_it_was(value: Any) -> None:
    assert widen(value) is value


def test_inside_sequences_and_of_scalars() -> None:
    inner = widen([np.float32([1]), [np.float16([2])], None])
    assert inner[0].dtype == inner[1][0].dtype == np.float64 and inner[2] is None
    assert widen(np.float32(1.5)).dtype == np.float64


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (3, 3),
        (0.5, 0.5),
        ("say", "say"),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [1, 2]),
        ([0.5, 1.0], [0.5, 1.0]),
    ],
)
def test_attributes_as_python_has_them(given: Any, value: Any) -> None:
    found = attribute_value(helper.make_attribute("a", given))
    assert found == value and type(found) is type(value)


def test_tensors_of_attributes_are_widened_and_text_that_is_none_is_replaced() -> None:
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2], [1.5, 2.5])
    assert attribute_value(helper.make_attribute("value", tensor)).dtype == np.float64
    damaged = onnx.AttributeProto(name="s", type=onnx.AttributeProto.STRING, s=b"\xff")
    assert attribute_value(damaged) == "\ufffd"


def sparse(indices: Any, shape: list[int]) -> onnx.SparseTensorProto:
    array = np.asarray(indices, np.int64)
    values = helper.make_tensor(
        "v", TensorProto.FLOAT, [len(array)], [float(i + 1) for i in range(len(array))]
    )
    return helper.make_sparse_tensor(
        values, helper.make_tensor("i", TensorProto.INT64, array.shape, array.flat), shape
    )


def test_sparse_tensors_by_linear_indices_and_by_coordinates() -> None:
    expected = [[0, 1, 0], [2, 0, 3]]
    assert dense(sparse([1, 3, 5], [2, 3])).tolist() == expected
    by_coordinates = dense(sparse([[0, 1], [1, 0], [1, 2]], [2, 3]))
    assert by_coordinates.tolist() == expected and by_coordinates.dtype == np.float64
    assert (
        attribute_value(helper.make_attribute("value", sparse([1, 3, 5], [2, 3]))).tolist()
        == expected
    )


BODY = """<domain: "f", opset_import: ["" : 20]> g <alpha, beta> (x, c) => (y) {
    a = LeakyRelu <alpha: float = @alpha> (x)
    b = HardSigmoid <alpha = 0.25, beta: float = @beta> (a)
    y = If (c) <then_branch = t () => (float[2] p) { p = Elu <alpha: float = @alpha> (b) },
                else_branch = e () => (float[2] q) { q = Identity (b) }> }"""


def test_references_become_what_the_call_gives() -> None:
    function = onnx.parser.parse_function(BODY)
    before = function.SerializeToString()
    leaky, hard, branch = [
        bind(n, {"alpha": helper.make_attribute("alpha", 0.5)}) for n in function.node
    ]
    assert [(a.name, a.f, a.ref_attr_name) for a in leaky.attribute] == [("alpha", 0.5, "")]
    # beta is not given: the schema's default holds, what the node says itself stays
    assert [(a.name, a.f) for a in hard.attribute] == [("alpha", 0.25)]
    then = next(a.g for a in branch.attribute if a.name == "then_branch")
    assert [(a.name, a.f, a.ref_attr_name) for a in then.node[0].attribute] == [("alpha", 0.5, "")]
    assert function.SerializeToString() == before


def test_types_of_values() -> None:
    found = type_of(np.zeros((2, 3), np.float32)).tensor_type
    assert found.elem_type == TensorProto.FLOAT and [d.dim_value for d in found.shape.dim] == [2, 3]
    assert type_of([np.zeros(2)]) == type_of(None) == onnx.TypeProto()
