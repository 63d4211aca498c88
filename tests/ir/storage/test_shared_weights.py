"""Large weights lie in one file beside all models of a proof, which reports the same numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, parser

import onnxgrad
from onnxgrad.errors import InputError, NotProved
from onnxgrad.grad.checking.check import check_gradient
from onnxgrad.grad.checking.derivatives import check_product
from onnxgrad.grad.checking.rounding import constants_shifted
from onnxgrad.ir.storage import shared_weights as files
from onnxgrad.ir.storage import weights_in_file

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[2, 8] x) => (float y)
<float[8, 8] w, float[8] e>
{ h = MatMul(x, w)  t = Tanh(h)  u = MatMul(t, w)  p = Pow(x, e)  z = Add(u, p)
  y = ReduceMean<keepdims = 0>(z) }
"""


def model() -> ModelProto:
    made, rng = parser.parse_model(TEXT), np.random.default_rng(0)
    del made.graph.initializer[:]
    for name, array in (("w", rng.standard_normal((8, 8))), ("e", np.full(8, 2.0))):
        tensor = numpy_helper.from_array(array.astype(np.float32), name)
        made.graph.initializer.append(tensor)
    return made


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where temporary folders are made; every weight is a large one."""
    monkeypatch.setattr(files, "LARGE", 1)
    monkeypatch.setattr(files, "LARGE_FILE", 1)
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.parametrize("outside", [False, True])
def test_the_weights_lie_in_one_file_that_is_removed(
    folder: Path, tmp_path: Path, outside: bool
) -> None:
    onnx.save(
        model(), tmp_path / "m.onnx", save_as_external_data=outside, size_threshold=0, location="d"
    )
    with files.opened(tmp_path / "m.onnx") as (found, where):
        assert not any(t.raw_data for t in found.graph.initializer)
        for proto in (found, where.proto(where.load(found))):
            path = where.runnable(proto)
            assert isinstance(path, Path) and path.parent == where.folder
            for tensor, given in zip(onnx.load(path).graph.initializer, model().graph.initializer):
                assert tensor.raw_data == given.raw_data
        names = {p.name for p in folder.rglob("*") if p.is_file()}
        assert "weights.data" in names and len(names) == 2  # equal models are one file
    assert not [*folder.iterdir()]


def _outside(path: Path) -> Path:
    onnx.save(model(), path, save_as_external_data=True, size_threshold=0, location="d")
    return path


def test_several_programs_share_the_weights_of_one_file(folder: Path, tmp_path: Path) -> None:
    path = _outside(tmp_path / "m.onnx")
    first, second = onnxgrad.load(path), onnxgrad.load(path)
    second.main.add_output(next(v for v in second.main.vars() if v.name == "t"))
    with files.sharing() as where:
        assert where.original(first) == path and where.folder is None
        paths = [where.of(program) for program in (first, second)]
        places = [[t.external_data for t in onnx.load(p, load_external_data=False).graph.initializer]
                  for p in paths if isinstance(p, Path)]  # fmt: skip
        assert len(places) == 2 and places[0] == places[1]
        assert where.folder is not None
        assert (where.folder / "weights.data").stat().st_size < 4096 + 256
    assert not [*folder.iterdir()]


def test_weights_that_changed_between_two_programs_are_noticed(
    folder: Path, tmp_path: Path
) -> None:
    path = _outside(tmp_path / "m.onnx")
    first, second = onnxgrad.load(path), onnxgrad.load(path)
    with files.sharing() as where:
        where.proto(second)
        data = bytearray((tmp_path / "d").read_bytes())
        data[0] ^= 1
        (tmp_path / "d").write_bytes(data)
        with files.sharing() as other:
            other.proto(first)
        with pytest.raises(NotProved, match="changed after the proof read it"):
            where.proto(first)


def test_all_external_weights_move_if_they_pass_two_gigabytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "LARGE_FILE", 1)
    program = onnxgrad.load(_outside(tmp_path / "m.onnx"))
    with files.sharing() as where:
        assert not files.external.outside(where.proto(program))  # small ones
        monkeypatch.setattr(files.external, "MAX_BYTES", 200)
        assert len(files.external.outside(where.proto(program))) == 2


@pytest.mark.parametrize(
    "work",
    [
        lambda path: onnxgrad.vmap(path, "x"),
        lambda path: onnxgrad.extract(path, outputs="t"),
    ],
)
def test_proofs_of_jobs_send_the_same_weights_as_files(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Path], ModelProto],
) -> None:
    path, seen = _outside(tmp_path / "m.onnx"), []
    move = files.external.move
    monkeypatch.setattr(files.external, "move", lambda *a: seen.append(a) or move(*a))
    from_files = work(path)
    assert seen and not [*folder.iterdir()]
    monkeypatch.undo()
    assert from_files == work(path)


def test_the_folder_is_removed_after_an_interrupt(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.opened(model()) as (_, where):
        assert where.folder is not None and where.folder.is_dir()
        raise KeyboardInterrupt
    assert not [*folder.iterdir()]


def test_without_room_on_the_disk_the_weights_stay_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files.external, "move", full)
    with files.opened(model()) as (found, where):
        assert found == model()
        assert not any(map(files.external.outside, [where.proto(where.load(found))]))


def _reports() -> list[onnxgrad.GradientReport]:
    return [
        check_gradient(model(), ["x", "w", "t"]),
        check_gradient(model(), ["x", "h"], "y", adjoint="input"),
        check_product(model(), ["x"], "u", of="jvp"),
        check_product(model(), ["x"], "y", of="hvp"),
    ]


@pytest.mark.slow
def test_a_check_from_files_reports_the_same_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_files = _reports()
    monkeypatch.undo()
    assert from_files == _reports() and all(r.ok for r in from_files)
    assert not [*folder.iterdir()]


def test_the_reference_shifts_the_constants_of_a_file_likewise(folder: Path) -> None:
    graph = model()
    graph.graph.initializer.append(numpy_helper.from_array(np.float32([0.3, 0.7]), "added"))
    expected = constants_shifted(graph, model(), 0)
    with files.opened(graph) as (found, where):
        bare = ModelProto()
        bare.CopyFrom(found)
        del bare.graph.initializer[-1]
        shifted = constants_shifted(found, bare, 0, where)
        assert shifted is not None and expected is not None
        assert shifted.graph.initializer[-1] == expected.graph.initializer[-1]


def test_a_constant_outside_a_model_without_a_folder_is_named() -> None:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    with pytest.raises(InputError, match="'w' lies in an external file"):
        files.IN_MEMORY.elements(tensor)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight of a model's file is a large one."""
    monkeypatch.setattr(weights_in_file, "LARGE", 1)


@pytest.mark.usefixtures("inside")
def test_weights_in_a_file_are_copied_beside_it_once(folder: Path, tmp_path: Path) -> None:
    """Also those of a file that a link names; a file with weights elsewhere stays as it is."""
    path, link, apart = (tmp_path / f"{name}.onnx" for name in ("m", "link", "apart"))
    onnx.save(model(), path)
    link.symlink_to(path)
    onnx.save(model(), apart, save_as_external_data=True, size_threshold=0, location="d")
    with files.sharing() as where:
        first, second = where.beside(path), where.beside(link)
        assert first == second != path and where.beside(apart) == apart
        found = onnx.load(first, load_external_data=False)
        assert {e.value for t in found.graph.initializer for e in t.external_data} >= {
            "weights.data"
        }
        moved = onnx.load(first)
        assert moved.graph.node == model().graph.node
        for ours, theirs in zip(moved.graph.initializer, model().graph.initializer, strict=True):
            assert ours.name == theirs.name and ours.raw_data == theirs.raw_data
        assert where.beside(first) == first
        assert where.original(onnxgrad.load(path)) == first
    assert not [*folder.iterdir()] and files.IN_MEMORY.beside(path) == path


@pytest.mark.usefixtures("inside")
def test_a_file_stays_as_it_is_without_room_for_its_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    onnx.save(model(), tmp_path / "m.onnx")
    monkeypatch.setattr(files.external, "move", full)
    with files.sharing() as where:
        assert where.beside(tmp_path / "m.onnx") == tmp_path / "m.onnx"


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_proof_of_files_with_large_weights_has_the_verdict_of_small_ones(
    folder: Path, tmp_path: Path, shift: float
) -> None:
    other = model()
    moved = numpy_helper.to_array(other.graph.initializer[0]) + np.float32(shift)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(moved, "w"))
    onnx.save(model(), tmp_path / "a.onnx")
    onnx.save(other, tmp_path / "b.onnx")
    report = onnxgrad.verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    inside = onnxgrad.verify(model(), other)
    assert bool(report) == (not shift) and report.differences == inside.differences
    assert not [*folder.iterdir()]


def test_arrays_are_written_where_tensors_refer_to_them(folder: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(5, np.float32)[::2]}
    assert files.IN_MEMORY.hold(arrays) == {}
    with files.sharing() as where:
        found = where.hold(arrays)
        assert [*found] == ["a", "b"] and where.folder is not None
        for name, array in arrays.items():
            assert not found[name].raw_data
            read = where.elements(found[name])
            assert read.dtype == array.dtype and np.array_equal(read, array)
    assert not [*folder.iterdir()]
