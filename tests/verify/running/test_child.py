"""The wire format and the packing of small integers, in our own process."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from onnxgrad.verify.running.child import Sessions, pack, receive, send, tensor_kind, unpack


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


def test_messages_cross_whole_and_arrays_stay_writable() -> None:
    stream = io.BytesIO()
    message = ("run", {"x": np.arange(6.0).reshape(2, 3).T, "b": np.ones(2, ml_dtypes.bfloat16), "s": ["a", None]})
    send(stream, message)
    stream.seek(0)
    verb, feeds = receive(stream)
    assert verb == "run" and feeds["s"] == ["a", None]
    assert np.array_equal(feeds["x"], message[1]["x"]) and feeds["b"].dtype == ml_dtypes.bfloat16
    feeds["x"][0, 0] = 1


@pytest.mark.parametrize("cut", [0, 5, 20])
def test_a_lost_peer_is_an_end_of_file(cut: int) -> None:
    stream = io.BytesIO()
    send(stream, np.zeros(9))
    with pytest.raises(EOFError):
        receive(io.BytesIO(stream.getvalue()[:cut]))


def test_sessions_are_dropped_oldest_first() -> None:
    from onnxgrad.verify.running import child
    from tests.helpers import parse

    sessions = Sessions()
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }").SerializeToString()
    config = {"provider": "CPUExecutionProvider", "provider_options": {}, "threads": 1, "optimize": True, "options": {}}
    for number in range(child.CACHED_SESSIONS + 1):
        sessions.open(str(number), model, config)
    assert not sessions.has("0") and sessions.has("1")


def test_kinds() -> None:
    assert tensor_kind("tensor(bfloat16)") == "bfloat16" and tensor_kind("seq(tensor(float))") == ""
