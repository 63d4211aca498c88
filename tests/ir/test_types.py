"""Types: names, protobuf, and what may be concluded from two shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, TypeProto

from onnxgrad.ir.types import (
    Dim,
    OpaqueType,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    Type,
    broadcast_dim,
    dtype_name,
    element_count,
    is_static,
    numpy_dtype,
    same_dim,
    same_shape,
    type_from_proto,
    type_to_proto,
)

DTYPES = [d for d in TensorProto.DataType.values() if d]
dims = st.one_of(st.none(), st.integers(0, 1 << 40), st.sampled_from(["N", "batch size", "unk__3"]))
tensors = st.builds(
    TensorType, st.sampled_from(DTYPES), st.none() | st.lists(dims, max_size=5).map(tuple)
)
types = st.recursive(
    tensors, lambda t: st.builds(SequenceType, t) | st.builds(OptionalType, t), max_leaves=3
)


def test_every_dtype_has_a_short_name_of_its_own_and_a_numpy_dtype() -> None:
    assert len({dtype_name(d) for d in DTYPES}) == len(DTYPES)
    assert [dtype_name(d) for d in (1, 10, 16, 11, 7, 2, 9, 8, 17, 22, 0, 9999)] == [
        "f32", "f16", "bf16", "f64", "i64", "u8", "bool", "str", "f8e4m3fn", "i4", "?", "dtype9999",
    ]  # fmt: skip
    assert all(isinstance(numpy_dtype(d), np.dtype) for d in DTYPES)


@given(types)
def test_types_survive_the_protobuf(type_: Type) -> None:
    assert type_from_proto(type_to_proto(type_)) == type_


def test_types_we_do_not_look_into_survive_too() -> None:
    proto = TypeProto()
    proto.map_type.key_type = TensorProto.STRING
    proto.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    found = type_from_proto(proto)
    assert (
        isinstance(found, OpaqueType) and str(found) == "map_type" and type_to_proto(found) == proto
    )
    assert type_from_proto(TypeProto()) is None and type_to_proto(None) == TypeProto()


def test_scalars_and_unknown_ranks_differ() -> None:
    scalar, unknown = type_to_proto(TensorType(1, ())), type_to_proto(TensorType(1, None))
    assert scalar.tensor_type.HasField("shape") and not unknown.tensor_type.HasField("shape")
    onnx.checker.check_value_info(onnx.ValueInfoProto(name="s", type=scalar))


@given(dims, dims)
def test_what_is_said_of_two_sizes(a: Dim, b: Dim) -> None:
    assert same_dim(a, b) == same_dim(b, a) and broadcast_dim(a, b) == broadcast_dim(b, a)
    assert not same_dim(a, None)
    if same_dim(a, b):
        assert broadcast_dim(a, b) == a


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ((2, "N"), (2, "N"), True),
        ((2, "N"), (2, "M"), False),
        ((2, None), (2, None), False),
        ((), (), True),
        ((2,), (2, 1), False),
        (None, None, False),
    ],
)
def test_same_shape(a: Shape | None, b: Shape | None, same: bool) -> None:
    assert same_shape(a, b) is same


@pytest.mark.parametrize(
    ("shape", "count"),
    [((), 1), ((2, 3), 6), ((0, 5), 0), ((2, "N"), None), ((2, None), None), (None, None)],
)
def test_element_count(shape: Shape | None, count: int | None) -> None:
    assert element_count(shape) == count and is_static(shape) is (count is not None)
