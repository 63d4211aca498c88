"""Large constants of a rebased model go through a file, one by one, and the result is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import onnxgrad
from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir.save import save
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.rebasing.constants import replacing
from onnxgrad.jobs.rebasing.rebase import Rebased, rebase
from onnxgrad.jobs.surgery.declarations import RebaseOptions
from tests.helpers import parse

# w is folded, v stays as it is, rows are no weights, and s is small
TEXT = """g (float[N,300] x) => (float[N,300] y, int64[40000] z) <float[300] s = {1}, int64[1] k = {2}> {
  t = Transpose (w)  p = MatMul (x, t)  q = MatMul (p, v)  y = Add (q, s)  z = Add (rows, k) }"""
SHAPES = {"w": (300, 300), "v": (300, 300), "s": (300,)}


def export(path: Path, seed: int, *, outside: bool = False) -> Path:
    rng, model = np.random.default_rng(seed), parse(TEXT)
    del model.graph.initializer[0]
    arrays = {n: rng.normal(size=s).astype(np.float32) / 8 for n, s in SHAPES.items()}
    for name, array in {**arrays, "rows": np.arange(40000)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path, save_as_external_data=outside)
    return path


def loaded(model: Path | ModelProto) -> ModelProto:
    """Without the note that onnx.load leaves at weights that it found outside."""
    proto = onnx.load(model) if isinstance(model, Path) else model
    for tensor in proto.graph.initializer:
        tensor.ClearField("data_location")
    return proto


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stay in files of every size."""
    monkeypatch.setattr("onnxgrad.ir.load.LARGE_FILE", 0)


@pytest.mark.parametrize("outside", [False, True])
def test_written_results(tmp_path: Path, outside: bool) -> None:
    """Equal to those of models in memory; nothing large is in the model while it is written."""
    old = export(tmp_path / "old" / "m.onnx", 1, outside=outside)
    new = export(tmp_path / "new" / "m.onnx", 2, outside=outside)
    done = onnxgrad.optimize(old, rebasable=True, report=True, verify=False)
    small, out = tmp_path / "small.onnx", tmp_path / "out.onnx"
    onnx.save(done.model, small, save_as_external_data=outside, location="small.data")
    seen: dict[str, int] = {}

    def write(made: Rebased) -> None:
        graph = made.program.proto.graph
        seen.update({t.name: len(t.raw_data) for t in graph.initializer})
        save(made.program, out)

    record = done.record
    found = rebase(small, new, RebaseOptions(record=record), Hooks(), write)
    assert found.ok and found.report is not None
    assert len(seen) >= 3 and max(seen.values()) <= 1200
    again = onnxgrad.rebase(small, new, record=record, verify=False)
    anew = onnxgrad.optimize(new, verify=False)
    assert loaded(out) == loaded(again) == loaded(anew)
    assert list(tmp_path.glob("out*")) == [out]


def test_other_shapes_and_dtypes(tmp_path: Path) -> None:
    model: ModelProto = onnx.load(export(tmp_path / "m" / "m.onnx", 1))
    wrong: list[Any] = [np.zeros((300, 299), np.float32), np.zeros((300, 300)), np.zeros((90000,), np.float32)]  # fmt: skip
    for apart in (False, True):
        for array in wrong:
            with replacing(model, None, apart=apart) as constants, pytest.raises(InternalError):
                constants.set("w", array.shape, [array])
    with replacing(model, None, apart=True) as constants:
        constants.set("w", (300, 300), [np.ones((100, 300), np.float32)] * 3)
        program = constants.program()
        assert program.folder is not None and program.folder.exists()
        (w,) = [t for t in program.proto.graph.initializer if t.name == "w"]
        assert w.data_location == TensorProto.EXTERNAL
    assert not program.folder.exists()


@pytest.mark.parametrize("apart", [False, True])
def test_copies_of_tensors(tmp_path: Path, apart: bool) -> None:
    """With raw data, in a file, or with numbers in a field of their dtype; damaged ones are refused."""
    model = onnx.load(export(tmp_path / "m" / "m.onnx", 1))
    given = onnx.load(export(tmp_path / "g" / "m.onnx", 2))
    outside = onnx.load(
        export(tmp_path / "o" / "m.onnx", 3, outside=True), load_external_data=False
    )
    w = next(t for t in given.graph.initializer if t.name == "w")
    v, rows = (t for t in outside.graph.initializer if t.name in ("v", "rows"))
    s = onnx.helper.make_tensor("s", TensorProto.FLOAT, [300], np.arange(300.0))
    assert v.data_location == TensorProto.EXTERNAL and s.float_data
    with replacing(model, None, apart=apart) as constants:
        for tensor in (w, v, rows, s):
            constants.copy(tensor.name, tensor, tmp_path / "o")
        program = constants.program()
        found = {t.name: program.array(t) for t in program.proto.graph.initializer}
        assert any(t.external_data for t in program.proto.graph.initializer) is apart
    rng = np.random.default_rng(3)
    other = {n: rng.normal(size=shape).astype(np.float32) / 8 for n, shape in SHAPES.items()}
    expected = {
        "w": numpy_helper.to_array(w), "v": other["v"], "rows": np.arange(40000), "s": np.arange(300),
    }  # fmt: skip
    assert {n: found[n].tobytes() for n in expected} == {
        n: np.asarray(a, found[n].dtype).tobytes() for n, a in expected.items()
    }
    w.raw_data = w.raw_data[:-4]
    with (
        replacing(model, None, apart=apart) as constants,
        pytest.raises(
            InputError, match=r"the weights: tensor 'w' is damaged: it holds 359996 bytes"
        ),
    ):
        constants.copy("w", w, None)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxgrad.jobs.rebasing.constants._WEIGHTS", "/dev/full")
    model = onnx.load(export(tmp_path / "m" / "m.onnx", 1))
    with (
        pytest.raises(InputError, match=r"stored here meanwhile: No space left on device; name"),
        replacing(model, None, apart=True) as constants,
    ):
        constants.set("w", (300, 300), [np.ones((100, 300), np.float32)] * 3)
        constants.program()
