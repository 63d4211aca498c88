"""The packing of small integers and the sessions kept, in our own process."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from onnxgrad.verify.running.child_sessions import (
    CACHED_SESSIONS,
    Sessions,
    pack,
    tensor_kind,
    unpack,
)
from tests.helpers import parse

CONFIG: dict[str, Any] = {
    "provider": "CPUExecutionProvider",
    "provider_options": {},
    "threads": 1,
    "optimize": True,
    "options": {},
}


@given(st.lists(st.integers(-8, 7), max_size=9))
def test_packing_is_onnxs_own(values: list[int]) -> None:
    array = np.array(values, ml_dtypes.int4)
    packed = pack(array.view(np.uint8), 4)
    assert packed.tobytes() == numpy_helper.from_array(array).raw_data
    assert unpack(packed, 4, array.size).view(ml_dtypes.int4).tolist() == array.tolist()


@given(st.lists(st.integers(0, 3), max_size=9))
def test_two_bits(values: list[int]) -> None:
    array = np.array(values, np.uint8)
    assert unpack(pack(array, 2), 2, array.size).tolist() == values


def test_sessions_are_dropped_oldest_first() -> None:
    sessions = Sessions()
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }").SerializeToString()
    for number in range(CACHED_SESSIONS + 1):
        sessions.open(str(number), model, CONFIG)
    assert not sessions.has("0") and sessions.has("1")


def test_kinds() -> None:
    assert tensor_kind("tensor(bfloat16)") == "bfloat16" and tensor_kind("seq(tensor(float))") == ""
