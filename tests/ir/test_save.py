"""Files appear whole or not at all, inputs are never touched, weights stay where they are until they must move."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir import save as save_module
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import save, to_proto
from onnxgrad.ir.storage import atomic_files, external_data
from tests.helpers import parse

W = np.arange(600, dtype=np.float32).reshape(2, 300)
B = np.arange(4, dtype=np.float32)


def external_model(folder: Path, location: str = "weights.bin") -> Path:
    """Two large initializers at one place in an external file, a small one beside them, one in a nested graph."""
    model = parse(
        """g (float[N,2] x, bool c) => (float[N,300] y, float[N,300] z) {
          y = MatMul(x, w)
          z = If (c) <then_branch = t () => (float[N,300] p) { p = MatMul(x, w) },
                      else_branch = e () => (float[N,300] p) { p = MatMul(x, tied) }>
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(W, "w"))
    model.graph.initializer.append(numpy_helper.from_array(W, "tied"))
    model.graph.initializer.append(numpy_helper.from_array(B, "unused"))
    data = W.tobytes()
    (folder / "weights.bin").write_bytes(b"\0" * 64 + data + B.tobytes())
    for tensor, offset, size in zip(
        model.graph.initializer, (64, 64, 64 + len(data)), (len(data), len(data), 16)
    ):
        onnx.external_data_helper.set_external_data(tensor, location, offset, size)
        tensor.ClearField("raw_data")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def same_but_for_location(a: ModelProto, b: ModelProto) -> bool:
    found = []
    for model in (a, b):
        copy = ModelProto()
        copy.CopyFrom(model)
        for tensor in external_data.tensors(copy):
            del tensor.external_data[:]
        found.append(copy)
    return found[0] == found[1]


def weights_of(path: Path) -> Path:
    """The one external file of a model."""
    (name,) = external_data.locations(onnx.load(path, load_external_data=False))
    return path.with_name(name)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def values(path: Path) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("changed", [False, True])
def test_external_data_is_streamed_to_one_new_file(tmp_path: Path, changed: bool) -> None:
    source = external_model(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    program = load(source)
    program.main.changed = changed
    assert program.main.initializers["w"].shape == (2, 300)
    out = tmp_path / "out"
    out.mkdir()
    save(program, out / "new.onnx")
    data = weights_of(out / "new.onnx")
    assert sorted(p.name for p in out.iterdir()) == ["new.onnx", data.name]
    assert re.fullmatch(r"new\.onnx\.[0-9a-f]{16}\.data", data.name)
    after = onnx.load(out / "new.onnx", load_external_data=False)
    assert same_but_for_location(onnx.load(source, load_external_data=False), after)
    places = [e for t in after.graph.initializer for e in t.external_data if e.key == "location"]
    assert {e.value for e in places} == {data.name}
    assert data.stat().st_size < 2 * W.nbytes, "what shared its place still does"
    for name, array in values(source).items():
        np.testing.assert_array_equal(values(out / "new.onnx")[name], array)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    onnx.checker.check_model(str(out / "new.onnx"))


def test_weights_are_not_read_until_asked_for(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    (tmp_path / "weights.bin").unlink()
    program = load(source)
    assert to_proto(program) == onnx.load(source, load_external_data=False)
    for use in (
        lambda: program.main.initializers["w"].const,
        lambda: to_proto(program, weights=True),
        lambda: save(program, tmp_path / "out.onnx"),
    ):
        with pytest.raises(InputError, match="'w' cannot be read") as error:
            use()
        assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    "how", ["parent", "absolute", "link", "linked folder", "short", "empty", "folder", "nul"]
)
def test_external_data_may_not_leave_the_folder(tmp_path: Path, how: str) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 10_000)
    folder = tmp_path / "model"
    folder.mkdir()
    location = {
        "parent": "../secret.bin",
        "absolute": str(secret),
        "link": "link.bin",
        "linked folder": "sub/secret.bin",
        "short": "weights.bin",
        "empty": "",
        "folder": ".",
        "nul": "a\0b",
    }[how]
    path = external_model(folder, location)
    if how == "link":
        (folder / "link.bin").symlink_to(secret)
    elif how == "linked folder":
        (folder / "sub").symlink_to(tmp_path)
    elif how == "short":
        os.truncate(folder / "weights.bin", 100)
    (tmp_path / "out").mkdir()
    if how == "empty":
        with pytest.raises(InputError, match="an external file that is not named"):
            load(path)
        return
    program = load(path)
    for use in (
        lambda: program.main.initializers["w"].const,
        lambda: to_proto(program, weights=True),
        lambda: save(program, tmp_path / "out" / "m.onnx"),
    ):
        with pytest.raises(InputError, match="cannot be read"):
            use()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_with_two_names_says_what_to_do(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    os.link(tmp_path / "weights.bin", tmp_path / "cached.bin")
    with pytest.raises(InputError, match=r"hard link.*`cp -l`.*copy it"):
        save(load(source), tmp_path / "out.onnx")


def test_a_model_without_a_folder_names_the_way_out(tmp_path: Path) -> None:
    proto = onnx.load(external_model(tmp_path), load_external_data=False)
    program = load(proto)
    assert to_proto(program) == proto
    with pytest.raises(InputError, match="pass the model's path"):
        save(program, tmp_path / "out.onnx")


def test_its_own_files_are_never_overwritten(tmp_path: Path) -> None:
    source = external_model(tmp_path, "weights.bin")
    link, hard = tmp_path / "link.onnx", tmp_path / "hard.onnx"
    link.symlink_to(source)
    os.link(source, hard)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    program = load(source)
    for target in (source, tmp_path / "." / "model.onnx", link, hard):
        with pytest.raises(InputError, match="output and input are the same"):
            save(program, target)
    with pytest.raises(InputError, match="reads its weights from this file"):
        save(program, tmp_path / "weights.bin")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("changed", [False, True])
def test_weights_that_the_input_reads_stay(tmp_path: Path, changed: bool) -> None:
    """OUT's own data file is the input's too: it is neither written over nor removed with the old OUT."""
    save(load(external_model(tmp_path)), tmp_path / "out.onnx")
    shutil.copy(tmp_path / "out.onnx", tmp_path / "in.onnx")
    before = contents(tmp_path)
    program = load(tmp_path / "in.onnx")
    if changed:
        program.main.remove_initializer(program.main.initializers["unused"])
    save(program, tmp_path / "out.onnx")
    after = contents(tmp_path)
    assert {n: after[n] for n in before if n != "out.onnx"} == {
        n: before[n] for n in before if n != "out.onnx"
    }
    assert len(after) == len(before) + changed
    np.testing.assert_array_equal(values(tmp_path / "in.onnx")["w"], W)


def test_two_versions_never_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rename is the last one to happen: OUT is whole, old or new, and a second try leaves no more behind."""
    out = tmp_path / "out"
    out.mkdir()
    save(load(external_model(tmp_path)), out / "m.onnx")
    old = contents(out)
    changed = W[::-1].copy()
    (tmp_path / "weights.bin").write_bytes(b"\0" * 64 + changed.tobytes() + B.tobytes())
    replace = os.replace
    for last in (0, 1):
        made = []

        def fail(source: Any, target: Any, made: list[Any] = made, last: int = last) -> None:
            if len(made) == last:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            made.append(replace(source, target))

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(InputError, match="No space left"):
            save(load(tmp_path / "model.onnx"), out / "m.onnx")
        monkeypatch.undo()
        assert contents(out) == old
    # killed between the two: the new weights lie there and nobody reads them
    calls = []

    def killed(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, "as good as dead")
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(InputError):
        save(load(tmp_path / "model.onnx"), out / "m.onnx")
    monkeypatch.undo()
    np.testing.assert_array_equal(values(out / "m.onnx")["w"], W)
    save(load(tmp_path / "model.onnx"), out / "m.onnx")
    np.testing.assert_array_equal(values(out / "m.onnx")["w"], changed)
    assert {p.name for p in out.iterdir() if p.suffix != ".part"} == {
        "m.onnx",
        weights_of(out / "m.onnx").name,
    }


def test_only_a_data_file_of_its_own_goes_with_the_model(tmp_path: Path) -> None:
    source, out = load(external_model(tmp_path)), tmp_path / "out"
    out.mkdir()
    (out / "m.onnx.data").mkdir()
    (out / "m.onnx.0123456789abcdef.data").write_bytes(b"another's: m.onnx does not read it")
    save(source, out / "m.onnx")
    first = weights_of(out / "m.onnx")
    save(source, out / "m.onnx")
    assert weights_of(out / "m.onnx") == first, "the same content has the same name"
    others = {"m.onnx.data", "m.onnx.0123456789abcdef.data"}
    assert {p.name for p in out.iterdir()} == {"m.onnx", first.name, *others}
    # a name that is taken by something else
    first.write_bytes(b"tampered with")
    save(source, out / "m.onnx")
    assert weights_of(out / "m.onnx").name == f"{first.stem}-2.data"
    assert {p.name for p in out.iterdir()} == {"m.onnx", weights_of(out / "m.onnx").name, *others}
    # a model without external weights replaces it
    save(load(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")), out / "m.onnx")
    assert {p.name for p in out.iterdir()} == {"m.onnx", *others}
    # the data of a model that others wrote stays
    onnx.save(
        onnx.load(tmp_path / "model.onnx"),
        out / "m.onnx",
        save_as_external_data=True,
        location="w",
        size_threshold=0,
    )
    save(source, out / "m.onnx")
    assert (out / "w").is_file()


def test_eight_writers_of_one_output_leave_no_weights_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = save_module.own_data

    def slowly(place: Path) -> list[Path]:
        found = look(place)
        time.sleep(0.01)  # another writer would come in between
        return found

    monkeypatch.setattr(save_module, "own_data", slowly)
    programs = []
    for i in range(8):
        (tmp_path / f"in{i}").mkdir()
        path = external_model(tmp_path / f"in{i}")
        data = path.with_name("weights.bin")
        data.write_bytes(data.read_bytes()[:-16] + bytes([i]) * 16)
        programs.append(load(path))
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda program: save(program, out / "m.onnx", sync=False), programs))
        assert {p.name for p in out.iterdir()} == {"m.onnx", weights_of(out / "m.onnx").name}


def relu() -> ModelProto:
    return parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")


def test_a_new_output_has_the_mode_that_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        save(load(relu()), str(tmp_path / "y.onnx"))
        save(load(external_model(tmp_path)), tmp_path / "z.onnx")
    finally:
        os.umask(old)
    made = (tmp_path / "y.onnx", tmp_path / "z.onnx", weights_of(tmp_path / "z.onnx"))
    assert [stat.S_IMODE(p.stat().st_mode) for p in made] == [0o640] * 3


@pytest.mark.parametrize("mode", [0o600, 0o604, 0o440, 0o755])
def test_a_replaced_output_keeps_its_mode_and_its_owner(tmp_path: Path, mode: int) -> None:
    """So do the weights beside it, which are no less secret, and any other file that we write."""
    model, text = tmp_path / "z.onnx", tmp_path / "z.json"
    owner = (1234, 2345) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for path in (model, text):
        path.write_bytes(b"old")
        path.chmod(mode)
        os.chown(path, *owner)
    save(load(external_model(tmp_path)), model)
    atomic_files.write_whole(text, b"new")
    for path in (model, weights_of(model), text):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (mode, *owner)
    assert text.read_bytes() == b"new"


def test_special_bits_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "y.onnx"
    path.write_bytes(b"old")
    path.chmod(0o4755)
    save(load(relu()), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def _fail(error: OSError) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("where", ["write", "rename", "sync"])
def test_nothing_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    source = external_model(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "m.onnx").write_bytes(b"old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if where == "write":

        class Full(io.BufferedWriter):
            def write(self, data: Any) -> int:
                raise full

        monkeypatch.setattr(
            atomic_files, "open", lambda fd, mode: Full(io.FileIO(fd, "w")), raising=False
        )
    else:
        monkeypatch.setattr(os, {"rename": "replace", "sync": "fsync"}[where], _fail(full))
    with pytest.raises(InputError, match=r"m.onnx: cannot be written: No space left"):
        save(load(source), out / "m.onnx")
    monkeypatch.undo()
    assert [(p.name, p.read_bytes()) for p in out.iterdir()] == [("m.onnx", b"old")]


@pytest.mark.parametrize("target", ["none/m.onnx", "file/m.onnx", "folder", "x" * 300])
def test_where_nothing_can_be_written(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written") as error:
        save(load(external_model(tmp_path)), tmp_path / target)
    assert "\n" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "file",
        "folder",
        "model.onnx",
        "weights.bin",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        save(load(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")), tmp_path / "m.onnx")


def test_same_edits_same_bytes(tmp_path: Path) -> None:
    found = []
    for name in ("a.onnx", "b.onnx"):
        program = load(external_model(tmp_path))
        with emitting(program.main):
            y = program.main.outputs[0]
            program.main.replace(y, op.Add(program.main.inputs[0] @ constant(W), np.float32(1)))
        program.main.remove_unused()
        save(program, tmp_path / name)
        found.append((tmp_path / name).read_bytes().replace(b"a.onnx", b"b.onnx"))
    assert found[0] == found[1]
    assert weights_of(tmp_path / "a.onnx").name[1:] == weights_of(tmp_path / "b.onnx").name[1:]


def test_initializers_can_be_renamed() -> None:
    weights = "float[2] v = {1, 2}, float[2] w = {3, 4}"
    model = parse(f"g (float[2] x) => (float[2] y) <{weights}> {{ t = Mul(x, v) y = Mul(t, w) }}")
    block = load(model).main
    block.initializers["v"].rename("weight")
    block.check()
    after = to_proto(block.program)
    assert [t.name for t in after.graph.initializer] == ["weight", "w"]
    assert list(after.graph.node[0].input) == ["x", "weight"]
    assert model.graph.initializer[0].name == "v"


def test_raised_versions_are_written_in_place() -> None:
    header = '<ir_version: 8, opset_import: ["d" : 1, "ai.onnx" : 17]>'
    model = parse(f"{header} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}")
    program = load(model)
    program.opsets[""], program.opsets["com.microsoft"], program.ir_version = 21, 1, 10
    after = to_proto(program)
    assert [(o.domain, o.version) for o in after.opset_import] == [
        ("d", 1),
        ("ai.onnx", 21),
        ("com.microsoft", 1),
    ]
    assert after.ir_version == 10 and after.graph == model.graph


@pytest.mark.slow
def test_models_over_two_gigabytes(tmp_path: Path) -> None:
    count = 9 << 28  # 2.25 GB of int8, sparse on disk
    model = parse(
        "g (int64 i) => (int8 y, int64 j) { y = Gather(w, i) t = Identity(i) j = Neg(t) }"
    )
    tensor = TensorProto(
        name="w", data_type=TensorProto.INT8, dims=[count], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="w.bin")
    model.graph.initializer.append(tensor)
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(count)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    program = load(tmp_path / "m.onnx")
    block = program.main
    block.replace(next(b.out for b in block.bindings if b.op == "Identity"), block.inputs[0])
    block.remove_unused()
    with pytest.raises(
        InputError, match=r"pass 2 GB, more than a ModelProto .* onnxgrad.load\(path\)"
    ):
        to_proto(program, weights=True)
    out = tmp_path / "out"
    out.mkdir()
    save(program, out / "m.onnx")
    assert weights_of(out / "m.onnx").stat().st_size == count
    assert (out / "m.onnx").stat().st_size < 1000
    weights_of(out / "m.onnx").unlink()
    # one that passed the limit in memory
    grown = load(parse("g (int8 x) => (int8 y) { y = Neg(x) }"))
    with emitting(grown.main):
        for _ in range(2):
            grown.main.add_output(op.Neg(constant(np.zeros(count // 2, np.int8))))
    save(grown, out / "grown.onnx")
    assert weights_of(out / "grown.onnx").stat().st_size == count
    weights_of(out / "grown.onnx").unlink()  # pytest keeps its folders


def test_external_data_is_as_long_as_its_sizes_ask_for(tmp_path: Path) -> None:
    """A length that is left out is theirs, not that of the rest of the file, which may be of any size."""
    path = external_model(tmp_path)
    with (tmp_path / "weights.bin").open("ab") as file:
        file.truncate(1 << 40)
    model = onnx.load(path, load_external_data=False)
    (tensor,) = [t for t in model.graph.initializer if t.name == "w"]
    expected = load(path).main.initializers["w"].const
    (length,) = [e for e in tensor.external_data if e.key == "length"]
    tensor.external_data.remove(length)
    onnx.save(model, path)
    program = load(path)
    assert expected is not None and np.array_equal(program.main.initializers["w"].const, expected)
    save(program, tmp_path / "out.onnx")
    assert np.array_equal(load(tmp_path / "out.onnx").main.initializers["w"].const, expected)
    for wrong in (expected.nbytes - 4, 1 << 39):
        del tensor.external_data[1:]
        tensor.external_data.add(key="length", value=str(wrong))
        onnx.save(model, path)
        with pytest.raises(
            InputError,
            match=f"declared as {wrong} bytes long, and its sizes require {expected.nbytes}",
        ):
            save(load(path), tmp_path / "out.onnx")


def test_a_model_of_another_kind_is_told_how_it_is_written(tmp_path: Path) -> None:
    model: Any = parse("g (float[2] x) => (float[2] y) { y = Abs (x) }")
    with pytest.raises(InputError, match=r"must be a Program, which onnxgrad\.load returns"):
        save(model, tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())
