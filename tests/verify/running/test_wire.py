"""The wire format, in our own process."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest

from onnxgrad.verify.running.wire import receive, send


def test_messages_cross_whole_and_arrays_stay_writable() -> None:
    stream = io.BytesIO()
    message = (
        "run",
        {
            "x": np.arange(6.0).reshape(2, 3).T,
            "b": np.ones(2, ml_dtypes.bfloat16),
            "s": ["a", None],
        },
    )
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
