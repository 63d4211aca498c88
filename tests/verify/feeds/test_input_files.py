"""The user's own inputs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.verify.feeds.input_files import load_inputs
from tests.helpers import parse

ONE = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
TWO = parse("g (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }")
X, Z = np.arange(3, dtype=np.float32), np.ones(3, np.float32)


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=X, z=Z)
    found = load_inputs(tmp_path / "in.npz", TWO)
    assert np.array_equal(found["x"], X) and np.array_equal(found["z"], Z)


def test_npy_by_name_or_for_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    assert list(load_inputs(tmp_path / "a.npy", ONE)) == ["x"]
    assert list(load_inputs([f"x={tmp_path / 'a.npy'}", f"z={tmp_path / 'a.npy'}"], TWO)) == [
        "x",
        "z",
    ]
    with pytest.raises(InputError, match="choose one with"):
        load_inputs(tmp_path / "a.npy", TWO)


def test_protobuf_by_position_own_name_or_folder(tmp_path: Path) -> None:
    (tmp_path / "input_0.pb").write_bytes(numpy_helper.from_array(X).SerializeToString())
    (tmp_path / "input_1.pb").write_bytes(numpy_helper.from_array(Z).SerializeToString())
    (tmp_path / "any.pb").write_bytes(numpy_helper.from_array(Z, "z").SerializeToString())
    assert np.array_equal(load_inputs(tmp_path / "input_1.pb", TWO)["z"], Z)
    assert list(load_inputs(tmp_path / "any.pb", TWO)) == ["z"]
    assert list(load_inputs(tmp_path, TWO)) == ["x", "z"]


def test_sequences(tmp_path: Path) -> None:
    model = parse("g (seq(float[N]) s) => (seq(float[N]) y) { y = Identity(s) }")
    (tmp_path / "input_0.pb").write_bytes(numpy_helper.from_list([X, Z]).SerializeToString())
    found = load_inputs(tmp_path / "input_0.pb", model)["s"]
    assert isinstance(found, list) and len(found) == 2


def test_names_with_an_equals_sign(tmp_path: Path) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "a=b:0"
    np.save(tmp_path / "v.npy", X)
    assert list(load_inputs(f"a=b:0={tmp_path / 'v.npy'}", model)) == ["a=b:0"]


@pytest.mark.parametrize(
    "name", ["missing.npz", "missing.npy", "missing.pb", "junk.npz", "junk.npy", "x.txt", "folder"]
)
def test_bad_files_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    for junk in ("junk.npz", "junk.npy"):
        (tmp_path / junk).write_bytes(b"not an array")
    with pytest.raises(InputError, match=name.replace(".", "\\.")) as caught:
        load_inputs(tmp_path / name, ONE)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_crowded_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=X, b=Z)
    with pytest.raises(InputError, match="no input 'q'"):
        load_inputs("q=file.npy", ONE)
    with pytest.raises(InputError, match="holds 2 arrays"):
        load_inputs(f"x={tmp_path / 'in.npz'}", ONE)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError):
        load_inputs(tmp_path / "o.npy", ONE)


def test_a_tensor_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "input_0.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(InputError, match="is not a TensorProto"):
        load_inputs(tmp_path / "input_0.pb", ONE)
    assert onnx.TensorProto().data_type == 0


def test_a_file_of_values_that_is_none_is_one_line(tmp_path: Path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    np.savez(tmp_path / "pickled.npz", x=np.array([object()], dtype=object))
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    for name in ("pickled.npz", "pipe.npz", "zero.npz"):
        with pytest.raises(InputError, match=name):
            load_inputs([str(tmp_path / name)], model)
