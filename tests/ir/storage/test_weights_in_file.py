"""A model read without its large weights is the model, wherever the weights lie."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.ir.load import bring_inside, load_in_place
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import weights_in_file
from onnxgrad.ir.storage.weights_in_file import LARGE, pieces, read_without_weights
from onnxgrad.train.export import digest
from tests.helpers import parse


def model() -> onnx.ModelProto:
    made = parse(
        "g (float[N,256] x) => (float[N,256] y) "
        "{ a = MatMul (x, small)  b = MatMul (a, large)  y = Add (b, listed) }"
    )
    rng = np.random.default_rng(0)
    for name, rows in {"small": 255, "large": 256, "last": 512}.items():
        array = rng.standard_normal((rows, 256)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    listed = made.graph.initializer.add(name="listed", data_type=1, dims=[LARGE // 1024, 256])
    listed.float_data.extend(range(LARGE // 4))
    made.metadata_props.add(key="a", value="b")
    made.graph.initializer[2].doc_string = "unread"
    return made


def test_large_weights_stay_and_come_back(tmp_path: Path) -> None:
    path, given = tmp_path / "model.onnx", model()
    onnx.save(given, path)
    found = read_without_weights(path)
    assert found is not None
    outside = [t.name for t in found.graph.initializer if t.data_location]
    assert outside == ["large", "last"] and found.ByteSize() < path.stat().st_size / 2
    program = load_in_place(path)
    assert digest(program) == digest(given)
    bring_inside(path, program)
    assert to_proto(program).SerializeToString() == given.SerializeToString()


def test_written_in_pieces_it_is_the_file_that_protobuf_writes(tmp_path: Path) -> None:
    path, given = tmp_path / "model.onnx", model()
    onnx.save(given, path)
    found = read_without_weights(path)
    assert found is not None
    assert b"".join(pieces(found, path, {})) == given.SerializeToString() == path.read_bytes()
    other = np.arange(512 * 256, dtype=np.float32).reshape(512, 256)
    given.graph.initializer[2].raw_data = other.tobytes()
    assert b"".join(pieces(found, path, {"last": other[:, :]})) == given.SerializeToString()
    path.write_bytes(path.read_bytes()[: -4 * LARGE])
    with pytest.raises(OSError, match="has become shorter"):
        b"".join(pieces(found, path, {}))


@pytest.mark.parametrize("how", ["link", "second name", "cut", "fields", "other bytes"])
def test_another_file_is_read_as_ever(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    if how == "link":
        path.symlink_to(path.rename(tmp_path / "other"))
    elif how == "second name":
        os.link(path, tmp_path / "other")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-LARGE])
    else:
        path.write_bytes(bytes([0 if how == "fields" else 0xFF]) * 2 * LARGE)
        monkeypatch.setattr(weights_in_file, "_MOST_FIELDS", 1000)  # that take a millisecond
    assert read_without_weights(path) is None


def test_a_damaged_weight_is_read_inside(tmp_path: Path) -> None:
    """So that the message is that of any model."""
    path, given = tmp_path / "model.onnx", model()
    given.graph.initializer[1].dims[0] = 255
    onnx.save(given, path)
    found = read_without_weights(path)
    assert found is not None and not found.graph.initializer[1].data_location
