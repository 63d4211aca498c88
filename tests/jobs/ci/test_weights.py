"""The record of a weight: one short line that names what a replacement changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxgrad.ir.storage import external_data
from onnxgrad.jobs.ci.weights import (
    MOST_BYTES,
    MOST_LINES,
    Weight,
    grouped,
    is_line,
    lines_of,
    named,
    weight_of,
    weights_of,
)
from tests.helpers import parse

KINDS = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool", "complex64"]


def array(kind: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape) * 3).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 4), (2,), (), (0, 3), (4, 3, 2)])
def test_a_line_comes_back_and_does_not_depend_on_where_the_data_lies(
    kind: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = array(kind, *shape)
    inside = numpy_helper.from_array(given, "w")
    found = weight_of(inside, None)
    line = str(found)
    assert len(line) <= MOST_BYTES and is_line(line) and str(Weight.of(line)) == line
    monkeypatch.setattr(external_data, "_PIECE", 16)  # bytes: rows and columns lie across pieces
    (tmp_path / "w.bin").write_bytes(inside.raw_data)
    outside = TensorProto(name="w", data_type=inside.data_type, dims=inside.dims, raw_data=b"\0")
    external_data.set_external_data(outside, "w.bin", 0, len(inside.raw_data))
    outside.ClearField("raw_data")
    assert str(weight_of(outside, tmp_path)) == line
    if given.size and given.dtype.kind != "c":
        assert found.norm == pytest.approx(np.linalg.norm(given.astype(np.float64)))
        assert (found.low, found.high) == (given.min(), given.max())


def test_what_is_counted() -> None:
    given = array("float32", 4, 6)
    given[1], given[:, 2] = 0, 0
    given[0, 0], given[2, 1] = np.nan, -np.inf
    found = weight_of(numpy_helper.from_array(given, "w"), None)
    assert (found.bad, found.zero_rows) == (2, 2)
    assert str(found).endswith(" nan=2 zeros=2")
    small = weight_of(numpy_helper.from_array(np.float32(0.3), "t"), None)
    assert small.values == "0.3" and small.norm == pytest.approx(0.3)
    assert weight_of(numpy_helper.from_array(np.zeros(3, np.float32), "b"), None).is_zero
    for dtype in (TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4):
        half = onnx.helper.make_tensor("h", dtype, [3], [1.0, 0.0, 2.0])
        assert weight_of(half, None).norm == pytest.approx(5**0.5)
    text = weight_of(onnx.helper.make_tensor("s", TensorProto.STRING, [1], [b"\xff"]), None)
    assert is_line(str(text))


def test_every_constant_has_a_name() -> None:
    model = parse("""g (float[4] x, bool c) => (float[4] y) <float[4] w = {1,2,3,4}> {
      t = Constant<value_float = 0.5>()
      s = Constant<value = int64[1] {4}>()
      r = ConstantOfShape<value = float[1] {7.0}>(s)
      i = If (c) <then_branch = a () => (float[4] p) <float[4] w2 = {1,1,1,1}> { p = Add(x, w2) },
                  else_branch = b () => (float[4] q) { q = Mul(x, w) }>
      k = Mul(i, t)  y = Add(k, r) }""")
    assert [name for name, _ in named(model)] == ["w", "t", "s", "r.value", "w2"]
    assert weights_of(model, None)["t"].values == "0.5"


def test_many_weights_are_groups() -> None:
    one = weight_of(numpy_helper.from_array(array("float32", 3, 3), "w"), None)
    names = [f"layer.{i}.part.{j}.w" for i in range(300) for j in range(4)]
    found = lines_of(dict.fromkeys(names, one))
    assert len(found) == 300 and next(iter(found)) == "layer.0.part.*"
    line = found["layer.0.part.*"]
    assert line.startswith("4 weights ") and str(Weight.of(line)) == line
    assert len(lines_of({f"onnx::MatMul_{i}": one for i in range(MOST_LINES + 1)})) == 1
    few = dict.fromkeys(names[:MOST_LINES], one)
    assert grouped(few, MOST_LINES) == few
