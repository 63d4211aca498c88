"""The packing of small integers and the sessions kept, in our own process."""

from __future__ import annotations

import io
import os
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.running import child_main
from onnxgrad.verify.running.child_sessions import (
    CACHED_SESSIONS,
    EXOTIC,
    Sessions,
    pack,
    tensor_kind,
    unpack,
)
from onnxgrad.verify.running.wire import receive, send
from tests.helpers import MODELS_DIR, parse

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


@pytest.mark.parametrize(("most", "left"), [(1, "3"), (1 << 60, "0123")])
def test_one_session_stays_if_they_are_large(most: int, left: str) -> None:
    sessions = Sessions()
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }").SerializeToString()
    for number in range(4):
        sessions.open(str(number), model, CONFIG | {"most": most})
    assert "".join(n for n in "0123" if sessions.has(n)) == left


def test_a_session_without_memory_between_runs() -> None:
    sessions = Sessions()
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }").SerializeToString()
    for lean in (False, True):
        sessions.open("s", model, CONFIG | {"lean": lean})
        options = sessions._open["s"].get_session_options()
        assert options.enable_cpu_mem_arena == options.enable_mem_pattern == (not lean)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs a file in memory")
def test_onnxruntime_optimises_once_and_the_other_session_computes_the_same_bits() -> None:
    path, results = str(MODELS_DIR / "lstmcell.onnx"), []
    feeds = feeds_for(onnx.load(path), seed=0)
    for again, second in (("", path), ("digest", "this file is not read.onnx")):
        sessions = Sessions()
        for threads, model in ((1, path), (2, second)):
            sessions.open("it", model, {**CONFIG, "threads": threads, "again": again})
            results.append(sessions.run("it", feeds, None))
    for usual, other in zip(results[:2], results[2:]):
        assert all(np.array_equal(usual[name], other[name]) for name in usual)


def test_kinds() -> None:
    assert tensor_kind("tensor(bfloat16)") == "bfloat16" and tensor_kind("seq(tensor(float))") == ""


@pytest.mark.parametrize("kind", EXOTIC)
def test_types_are_onnxs_own(kind: str) -> None:
    code, name, bits = EXOTIC[kind]
    assert getattr(TensorProto, kind.upper()) == code
    dtype = helper.tensor_dtype_to_np_dtype(code)
    assert dtype == np.dtype(getattr(ml_dtypes, name)) and dtype.name == name
    array = np.zeros(8, dtype)
    assert len(numpy_helper.from_array(array).raw_data) == bits


@pytest.mark.parametrize(
    ("limit", "kind"), [(1 << 40, "MemoryError"), (0, "DecodeError")], ids=["limited", "not"]
)
def test_protobuf_that_finds_no_memory_says_so(
    limit: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a limit, a message that the parent could read is not damaged."""
    monkeypatch.setattr(child_main._Memory, "set", lambda self, limit: None)
    monkeypatch.setitem(child_main._VERBS, "parse", lambda _: ModelProto.FromString(b"\xff"))
    requests, answers = io.BytesIO(), io.BytesIO()
    send(requests, ("parse", limit))
    requests.seek(0)
    child_main.serve(requests, answers)
    answers.seek(0)
    assert receive(answers)[:2] == ("failed", kind)
