"""Values that become constants: numbers, lists, arrays, texts and files, and those that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError, NotProved
from tests.helpers import parse

TEXT = """g (float[N,3] x, float[N,3] k) => (float[N,3] x, float[N,3] y, float[N,3] z) {
  h = Add (x, k)  y = Exp (h)  t = Mul (k, w)  z = Sin (t) }"""
TEXT = TEXT.replace(" {\n", " <float[3] w = {1, 2, 3}> {\n")
K = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("float[2]", 3, [3, 3]), ("float[2]", [1, 0.5], [1, 0.5]), ("float[N]", "[1,2]", [1, 2]),
        ("int8[1]", "7", [7]), ("bool[2]", "[true,false]", [1, 0]), ("float[2]", "1e3", [1e3] * 2),
        ("bfloat16[1]", 1.5, [1.5]), ("bfloat16[1]", np.array([2], ml_dtypes.bfloat16), [2]),
        ("float16[1]", "-inf", None), ("int8[1]", 300, None), ("int64[1]", 0.5, None),
        ("float[N]", 3, None), ("float[2]", [1, 2, 3], None), ("float[2]", np.zeros(2), None),
        ("float[2]", "none.npy", None), ("float[2]", "word", None), ("bool[1]", 1, None),
        ("int64[1]", True, None), ("float[2]", {"a": 1}, None), ("float16[1]", 70000, None),
        ("float[2]", [[1], [1, 2]], None), ("float[2]", "[" * 9999, None), ("float[2]", "NaN", None),
        ("float[1]", np.array(["a"]), None), ("string[1]", np.zeros(1), None),
    ],
)  # fmt: skip
def test_values(kind: str, given: Any, wanted: list[float] | None) -> None:
    model = parse(
        f"g ({kind} k, float[N] x) => (float[M] y) {{ c = Cast <to = 1> (k) y = Add (c, x) }}"
    )
    if isinstance(given, str) and given == "NaN":  # a value, though nothing can be compared with it
        with pytest.raises(NotProved):
            onnxgrad.edit(model, bind={"k": given})
    elif wanted is None:
        with pytest.raises(InputError) as error:
            onnxgrad.edit(model, bind={"k": given})
        assert len(str(error.value)) < 300 and "\n" not in str(error.value)
    else:
        made = onnxgrad.edit(model, bind={"k": given}, verify=False)
        (tensor,) = made.graph.initializer
        assert numpy_helper.to_array(tensor).astype(float).tolist() == wanted


def test_texts_and_files(tmp_path: Path) -> None:
    model = parse("g (string[1] k, string[N] x) => (string[M] y) { y = StringConcat (k, x) }")
    assert onnxgrad.edit(model, bind={"k": "hello"}).graph.initializer[0].string_data == [b"hello"]
    np.savez(tmp_path / "k.npz", k=K, x=2 * K)
    np.save(tmp_path / "x.npy", 3 * K)
    (tmp_path / "k.pb").write_bytes(numpy_helper.from_array(K).SerializeToString())
    for name, file, scale in (
        ("k", "k.npz", 1),
        ("x", "k.npz", 2),
        ("x", "x.npy", 3),
        ("k", "k.pb", 1),
    ):
        made = onnxgrad.edit(parse(TEXT), bind={name: tmp_path / file}, verify=False)
        tensors = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
        assert np.array_equal(tensors[name], scale * K)
    np.savez(tmp_path / "k.npz", a=K, b=K)
    with pytest.raises(InputError, match="has a, b, but not k"):
        onnxgrad.edit(parse(TEXT), bind={"k": tmp_path / "k.npz"})


def test_no_other_kind_can_be_constant() -> None:
    text = "g (seq(float[N]) s, float[N] a) => (float[M] y) { z = ConcatFromSequence <axis = 0> (s) y = Add (z, a) }"
    with pytest.raises(InputError, match="it is not a tensor"):
        onnxgrad.edit(parse(text), bind={"s": [1]})
