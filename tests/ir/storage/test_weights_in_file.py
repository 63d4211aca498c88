"""A model read without its large weights is the model, wherever the weights lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir import load
from onnxgrad.ir.load import bring_inside, load_in_place
from onnxgrad.ir.save import save, to_proto
from onnxgrad.ir.storage import weights_in_file
from onnxgrad.ir.storage.external_data import Digests, halved, is_halved
from onnxgrad.ir.storage.outline import outline
from onnxgrad.ir.storage.weights_in_file import LARGE, pieces, read_without_weights
from onnxgrad.ir.types import Array
from onnxgrad.train import step_folder
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


def written(model: onnx.ModelProto, path: Path, arrays: dict[str, Array] | None = None) -> bytes:
    digests = Digests()
    digests.files = frozenset([path.name])
    return b"".join(pieces(model, path.parent, arrays or {}, digests))


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


def wide() -> onnx.ModelProto:
    """Weights that float16 holds, that are read in float32 as well, that it cuts off and loses."""
    rng = np.random.default_rng(1)
    made = parse(
        "g (float[256,256] x) => (float[256,256] y) { a = MatMul (x, both)  b = MatMul (a, tiny)"
        "  c = Add (b, mask)  d = CumSum (both, axis)  y = MatMul (c, d) }"
    )
    arrays = {name: rng.standard_normal((256, 256)).astype(np.float32) for name in ("both", "tiny")}
    arrays["tiny"][:100] = 1e-9
    arrays["mask"] = np.where(arrays["both"] < 0, np.float32(-3e38), np.float32(0))
    for name, array in {**arrays, "axis": np.array(0)}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    made.graph.initializer[0].doc_string = "of the float32 weight"
    return made


def test_a_large_file_is_changed_without_its_weights_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are those of small files, byte for byte."""
    path, small, large = tmp_path / "model.onnx", tmp_path / "small.onnx", tmp_path / "large.onnx"
    onnx.save(wide(), path)
    works: dict[str, Callable[[], onnx.ModelProto]] = {
        "float16": lambda: onnxgrad.float16(path, verify=False),
        "optimize": lambda: onnxgrad.optimize(path, verify=False),
        "edit": lambda: onnxgrad.edit(path, rename={"y": "z", "both": "w"}, verify=False),
    }
    before = {name: work().SerializeToString() for name, work in works.items()}
    assert main(["float16", str(path), "--no-verify", "-q", "-o", str(small)]) == 0
    monkeypatch.setattr(load, "LARGE_FILE", 1)
    monkeypatch.setattr(load, "parse", None)
    assert {name: work().SerializeToString() for name, work in works.items()} == before
    assert main(["float16", str(path), "--no-verify", "-q", "-o", str(large)]) == 0
    assert large.read_bytes() == small.read_bytes() == before["float16"]


def test_external_weights_are_converted_when_they_are_written(tmp_path: Path) -> None:
    given, path = wide(), tmp_path / "model.onnx"
    expected = onnxgrad.float16(given, verify=False)
    onnx.save(given, path, save_as_external_data=True, location="model.data")
    program = onnxgrad.float16(onnxgrad.load(path), verify=False)
    kept = [t for t in outline(program).graph.initializer if is_halved(t)]
    assert [t.name for t in kept] == ["tiny", "mask", "both_float16"]
    save(program, tmp_path / "out.onnx")
    for found in (to_proto(program, weights=True), onnx.load(tmp_path / "out.onnx")):
        assert found.graph.node == expected.graph.node
        for one, other in zip(found.graph.initializer, expected.graph.initializer, strict=True):
            one.ClearField("data_location")
            assert one == other
    inside = {t.name for t in to_proto(program).graph.initializer if not t.external_data}
    assert inside == {"tiny", "mask", "both_float16", "axis"}
    with open(tmp_path / "model.data", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\0\0\0\0\x80?\0\0")
    with pytest.raises(NotProved, match="changed after the proof read it"):
        save(program, tmp_path / "again.onnx")


def test_no_file_says_that_its_data_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(wide(), path, save_as_external_data=True, location="model.data")
    strange = onnx.load(path, load_external_data=False)
    strange.graph.initializer[1].CopyFrom(halved(strange.graph.initializer[1]))
    path.write_bytes(strange.SerializeToString())
    with pytest.raises(InputError, match=r"'tiny': remove the entry 'onnxgrad\.kept_as'"):
        onnxgrad.load(path)


def test_written_in_pieces_it_is_the_file_that_protobuf_writes(tmp_path: Path) -> None:
    path, given = tmp_path / "model.onnx", model()
    onnx.save(given, path)
    found = read_without_weights(path)
    assert found is not None
    assert written(found, path) == given.SerializeToString() == path.read_bytes()
    other = np.arange(512 * 256, dtype=np.float32).reshape(512, 256)
    given.graph.initializer[2].raw_data = other.tobytes()
    assert written(found, path, {"last": other[:, :]}) == given.SerializeToString()
    path.write_bytes(path.read_bytes()[: -4 * LARGE])
    with pytest.raises(InputError, match="cannot be read"):
        written(found, path)


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


def test_join_leaves_the_weights_of_a_large_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    words = [
        "join",
        *[str(tmp_path / "m.onnx")] * 2,
        "--map",
        "y=x",
        "--prefix",
        "B_",
        "--no-verify",
    ]
    assert main([*words, "-q", "-o", str(tmp_path / "whole.onnx")]) == 0

    def read_whole(path: Path) -> None:
        raise AssertionError(f"{path} is read with its weights")

    monkeypatch.setattr(load, "LARGE_FILE", LARGE)
    monkeypatch.setattr(load, "read_proto", read_whole)
    assert main([*words, "-q", "-o", str(tmp_path / "joined.onnx")]) == 0
    assert (tmp_path / "joined.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


def test_train_step_leaves_the_weights_of_a_large_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parse("g (float[N,256] x) => (float[N,256] y) { a = MatMul (x, w) y = MatMul (a, v) }")
    for name in ("w", "v"):
        array = np.full((256, 256), len(name) / 256, np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(made, tmp_path / "m.onnx")
    words = ["train-step", str(tmp_path / "m.onnx"), "--loss", "mse", "--wrt", "w"]
    words += ["--no-verify", "-q", "-o"]
    assert main([*words, str(tmp_path / "whole")]) == 0

    def read_whole(path: Path) -> None:
        raise AssertionError(f"{path} is read with its weights")

    monkeypatch.setattr(step_folder, "LARGE_FILE", LARGE)
    monkeypatch.setattr(step_folder, "read_proto", read_whole)
    monkeypatch.setattr(load, "read_proto", read_whole)
    assert main([*words, str(tmp_path / "step")]) == 0
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "step").iterdir())
    assert all(
        (tmp_path / "whole" / name).read_bytes() == (tmp_path / "step" / name).read_bytes()
        for name in names
    )
    kept = onnx.load(tmp_path / "step" / "predict.onnx").graph.initializer
    assert [v.name for v in kept if len(v.raw_data) == LARGE] == ["v"]
