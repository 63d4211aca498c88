"""Data that a command reads beside a model: hostile arrays, tensors, safetensors and texts at every place where one is read."""

from __future__ import annotations

import io
import json
import os
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxgrad import InputError, train
from onnxgrad.cli.app import main
from onnxgrad.jobs.recipe import find
from tests.ir.storage.test_numpy_files import LYING, header
from tests.train.common import classifier, examples

SECONDS, MEMORY = 10.0, 64 << 20  # of one command


def bomb(size: int) -> bytes:
    """A member of `size` zeros, whose compressed blocks are copies of one."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = block * (size >> 20) + b"\x03\x00"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"")
    made = bytearray(file.getvalue())
    body = made.index(b"PK\x01\x02")
    for at, fields in ((0, 8), (body, 10)):  # the method, and behind time and checksum both sizes
        made[at + fields : at + fields + 2] = (8).to_bytes(2, "little")
        sizes = len(data).to_bytes(4, "little") + size.to_bytes(4, "little")
        made[at + fields + 10 : at + fields + 18] = sizes
    end = made.index(b"PK\x05\x06")
    made[end + 16 : end + 20] = (body + len(data)).to_bytes(4, "little")
    return bytes(made[:body] + data + made[body:])


def overlapping(count: int) -> bytes:
    """An archive whose entries all lead to one member."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header("(1000000,)", data=bytes(4_000_000)))
    made = file.getvalue()
    body, end = made.index(b"PK\x01\x02"), made.rindex(b"PK\x05\x06")
    entry, tail = made[body:end], bytearray(made[end:])
    tail[8:12] = count.to_bytes(2, "little") * 2
    tail[12:16] = (count * len(entry)).to_bytes(4, "little")
    return made[:body] + entry * count + bytes(tail)


def tensor(dims: list[int], dtype: int = TensorProto.FLOAT, **fields: Any) -> bytes:
    return TensorProto(name="x", dims=dims, data_type=dtype, **fields).SerializeToString()  # type: ignore[no-any-return]


def stored(entries: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    """A safetensors file with this header, perhaps of another `length` than it has."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    size = len(text) if length is None else length
    return size.to_bytes(8, "little") + text + data


def adapters(words: str) -> bytes:
    """A file as save_adapters writes it, with these words beside the matrices."""
    return stored({"__metadata__": {"onnxgrad": json.dumps({"lora": words})}, "w": entry()})


def entry(shape: Any = (2, 2), offsets: Any = (0, 16), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DEEP = b"[" * 100_000
CONTENTS: dict[str, dict[str, bytes]] = {
    "arrays": LYING
    | {"zeros": bomb(3 << 30), "overlapping": overlapping(3000), "no members": b"PK\x05\x06" + bytes(18)},
    "tensor": {
        "garbage": b"\xff" * 40,
        "negative": tensor([-1, 8]),
        "negative pair": tensor([-2, -4], raw_data=bytes(32)),
        "huge": tensor([1 << 40, 8]),
        "huge with data": tensor([1 << 40, 8], raw_data=bytes(64)),
        "overflow": tensor([1 << 32, 1 << 32], raw_data=bytes(64)),
        "more than there is": tensor([2, 8], raw_data=bytes(8)),
        "less than there is": tensor([2, 8], raw_data=bytes(80)),
        "numbers of another count": tensor([2, 8], float_data=[1.0] * 3),
        "unknown type": tensor([2, 8], dtype=99, raw_data=bytes(64)),
        "no type": tensor([2, 8], dtype=0, raw_data=bytes(64)),
        "elsewhere": tensor([2, 8], data_location=TensorProto.EXTERNAL),
        "cut": tensor([2, 8], raw_data=bytes(64))[:-9],
        "zero elements of many": tensor([0, 1 << 62]),
        "strings": tensor([1 << 40], dtype=TensorProto.STRING, string_data=[b"a"]),
        "half bytes": tensor([1 << 40], dtype=TensorProto.INT4, raw_data=b"a"),
    },
    "stored": {
        "empty": b"",
        "short": b"\x08",
        "header of exbibytes": stored({}, length=1 << 62),
        "header of the rest": stored({"w": entry()}, length=1 << 20),
        "no length": stored(b"", length=0),
        "no JSON": stored(b"\xff{}"),
        "no object": stored([]),
        "deep": stored(b'{"a":' + DEEP),
        "entry is a number": stored({"w": 3}),
        "negative offset": stored({"w": entry(offsets=(-16, 0))}),
        "backwards": stored({"w": entry(offsets=(16, 0))}),
        "behind the end": stored({"w": entry(offsets=(0, 1 << 40), shape=(1 << 38,))}),
        "fewer bytes than the shape": stored({"w": entry(shape=(1 << 40,))}),
        "negative shape": stored({"w": entry(shape=(-2, -2))}),
        "overflowing shape": stored({"w": entry(shape=(1 << 32, 1 << 32, 4))}),
        "text for a shape": stored({"w": entry(shape="22")}),
        "overlapping": stored({"w": entry(), "v": entry()}),
        "partly overlapping": stored({"w": entry(), "v": entry(offsets=(8, 24))}, bytes(24)),
        "a hole": stored({"w": entry(), "v": entry(offsets=(20, 36))}, bytes(36)),
        "more data": stored({"w": entry()}, bytes(1000)),
        "unknown type": stored({"w": entry(dtype="F31")}),
        "type is a list": stored({"w": entry(dtype=["F32"])}),
        "unread type": stored({"w": entry(shape=(16,), dtype="F8_E4M3")}),
        "metadata of numbers": stored({"__metadata__": {"onnxgrad": 3}, "w": entry()}),
        "metadata is no JSON": stored({"__metadata__": {"onnxgrad": "{"}, "w": entry()}),
        "metadata is a list": stored({"__metadata__": {"onnxgrad": "[1]"}, "w": entry()}),
        "deep metadata": stored({"__metadata__": {"onnxgrad": "[" * 20_000}, "w": entry()}),
        "foreign": stored({"w": entry()}),
        "adapters are a list": adapters("[1]"),
        "adapters are deep": adapters("[" * 20_000),
        "adapters of rank 0": adapters('{"rank": 0, "alpha": 1, "targets": [], "base": ""}'),
        "adapters of huge alpha": adapters('{"rank": 1, "alpha": 1%s, "targets": [], "base": ""}' % ("0" * 400)),
        "adapters of no targets": adapters('{"rank": 1, "alpha": 1, "targets": 3, "base": ""}'),
        "twice": stored(b'{"w":' + (json.dumps(entry()) + ',"w":' + json.dumps(entry())).encode() + b"}"),
    },
    "text": {
        "empty": b"",
        "binary": b"\xff\xfe\x00",
        "null": b"\0" * 100,
        "deep list": DEEP,
        "deep object": b'{"a":' * 50_000,
        "deep array": b"a = " + DEEP,
        "number of many digits": b'{"format": ' + b"9" * 10_000 + b"}",
        "many digits": b"a = " + b"9" * 10_000,
        "no object": b"[1, 2]",
        "text alone": b'"text"',
        "not a number": b"NaN",
        "LoRA of huge alpha": b'{"peft_type": "LORA", "r": 1, "lora_alpha": 1%s}' % (b"0" * 400),
        "LoRA of half a rank": b'{"peft_type": "LORA", "r": 0.5, "lora_alpha": 1}',
        "LoRA of rank true": b'{"peft_type": "LORA", "r": true, "lora_alpha": 1}',
        "LoRA of a list": b'{"peft_type": "LORA", "r": [1], "lora_alpha": 1}',
        "cut": b'{"format": "onnxgrad tra',
    },
}  # fmt: skip
KINDS = [(kind, name) for kind, table in CONTENTS.items() for name in table]


@dataclass(frozen=True)
class Place:
    """Where a file is read, by what, and the kind of what is expected there; `absent`: it may be."""

    kind: str
    file: str
    command: tuple[str, ...] | Callable[[], object]
    absent: bool = False


def _peft() -> object:
    return train.read_peft("peft", "m.onnx")


INPUT = ("m.onnx", "--input", "f.npz")
FIT = ("fit", "m.onnx", "--loss", "cross_entropy", "--steps", "1", "--data")
STEP = ("fit", "step", "--steps", "1", "--data", "d.npz")
PLACES = {
    "verify": Place("arrays", "f.npz", ("verify", "m.onnx", *INPUT)),
    "expect": Place("arrays", "f.npz", ("verify", "m.onnx", "--input", "x.npz", "--expect", "f.npz")),
    "layers": Place("arrays", "f.npz", ("verify", "m.onnx", "--layers", "--expect", "f.npz")),
    "optimize": Place("arrays", "f.npz", ("optimize", *INPUT, "-o", "o.onnx")),
    "grad": Place("arrays", "f.npz", ("grad", *INPUT, "-o", "o.onnx", "--adjoint", "input")),
    "float16": Place("arrays", "f.npz", ("float16", *INPUT, "-o", "o.onnx")),
    "convert-opset": Place("arrays", "f.npz", ("convert-opset", *INPUT, "-o", "o.onnx", "--to", "20")),
    "check-grad": Place("arrays", "f.npz", ("check-grad", *INPUT)),
    "bench": Place("arrays", "f.npz", ("bench", *INPUT)),
    "train-step": Place("arrays", "f.npz", ("train-step", *INPUT, "-o", "o", "--loss", "cross_entropy")),
    "data": Place("arrays", "f.npz", (*FIT, "f.npz")),
    "validation": Place("arrays", "f.npz", (*FIT, "d.npz", "--validation", "f.npz")),
    "recipe's input": Place("arrays", "f.npz", ("ci", "inputs.toml")),
    "recipe's input of a model": Place("arrays", "f.npz", ("ci", "own.toml")),
    "tensor": Place("tensor", "f.pb", ("verify", "m.onnx", "m.onnx", "--input", "f.pb")),
    "named tensor": Place("tensor", "f.pb", ("optimize", "m.onnx", "-o", "o.onnx", "--input", "x=f.pb")),
    "folder": Place("tensor", "set/input_0.pb", ("verify", "m.onnx", "m.onnx", "--input", "set")),
    "recipe's tensor": Place("tensor", "f.pb", ("ci", "tensor.toml")),
    "state": Place("stored", "step/state.safetensors", STEP),
    "sealed state": Place("stored", "step/state.safetensors", ("train-step", "--seal", "step")),
    "checkpoint": Place("stored", "run/checkpoint.safetensors", (*STEP, "--folder", "run"), True),
    "adapters": Place("stored", "a.safetensors", lambda: train.load_adapters("m.onnx", "a.safetensors")),
    "PEFT": Place("stored", "peft/adapter_model.safetensors", _peft),
    "PEFT's configuration": Place("text", "peft/adapter_config.json", _peft),
    "manifest": Place("text", "step/manifest.json", STEP),
    "sealed manifest": Place("text", "step/manifest.json", ("train-step", "--seal", "step")),
    "recipe": Place("text", "r.toml", ("ci", "r.toml")),
    "lock": Place("text", "plain.lock.json", ("ci", "plain.toml"), True),
    "tuning": Place("text", "t.json", ("optimize", "m.onnx", "-o", "o.onnx", "--tune-from", "t.json")),
}  # fmt: skip
CI = '[ci]\nmodels = ["m.onnx"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands of PLACES name, sound."""
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "m.onnx")
    np.savez("d.npz", **examples(8))
    np.savez("x.npz", x=examples(8)["x"])
    Path("inputs.toml").write_text(f'[verify]\ninputs = ["f.npz"]\n{CI}')
    Path("own.toml").write_text(f'{CI}[models."m.onnx".verify]\ninputs = ["f.npz"]\n')
    Path("tensor.toml").write_text(f'[verify]\ninputs = ["x=f.pb"]\n{CI}')
    Path("plain.toml").write_text(CI)
    Path("set").mkdir()
    Path("peft").mkdir()
    lora = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    Path("peft/adapter_config.json").write_text(json.dumps(lora))
    Path("peft/adapter_model.safetensors").write_bytes(stored({}, b""))
    assert main(["train-step", "m.onnx", "-o", "step", "--loss", "cross_entropy", "-q"]) == 0
    assert main([*STEP, "--folder", "run", "-q"]) == 0
    return tmp_path


def make_sound(title: str, path: Path) -> None:
    """What is expected at a place, if the fixture has no such file."""
    x, y = examples(8)["x"], np.zeros((8, 3), np.float32)
    arrays = {"data": examples(8), "validation": examples(8), "expect": {"logits": y},
              "layers": {"x": x, "logits": y}}  # fmt: skip
    if path.name == "f.npz":
        np.savez(path, **arrays.get(title, {"x": x}))
    elif path.suffix == ".pb":
        path.write_bytes(onnx.numpy_helper.from_array(x, "x").SerializeToString())
    elif title == "adapters":
        train.save_adapters(train.lora("m.onnx", "*", rank=2), path)
    elif title == "recipe":
        path.write_text(CI)


def terabyte(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "circle": lambda path: path.symlink_to(path.name),
    "terabyte": terabyte,
}


def put(path: Path, kind: str, name: str) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    if kind == "":
        NO_FILES[name](path)
    else:
        path.write_bytes(CONTENTS[kind][name])


def outcome(place: Place, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what stands on stderr; of a function, as the command line would say it."""
    if isinstance(place.command, tuple):
        code = main([*place.command, "-q"])
        return code, capsys.readouterr().err
    try:
        place.command()
    except InputError as error:
        return 2, f"{error}\n"
    return 0, ""


def wrong(place: Place, kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is not as it has to be; empty: one line that names the file, exit code 2, in bounds."""
    path = Path(place.file)
    put(path, kind, name)
    tracemalloc.start()
    start = time.monotonic()
    try:
        code, said = outcome(place, capsys)
        taken, seconds = tracemalloc.get_traced_memory()[1], time.monotonic() - start
    finally:
        tracemalloc.stop()
    if place.absent and name == "missing":
        return "" if code == 0 else f"exit {code}: {said}"
    named = path.name in said or path.parent.name in said
    if code != 2 or said.count("\n") != 1 or not named or Path("o.onnx").exists():
        return f"exit {code}: {said[:300]}"
    return "" if taken < MEMORY and seconds < SECONDS else f"{taken:,} bytes, {seconds:.1f} s"


def failures(
    places: dict[str, list[tuple[str, str]]], capsys: pytest.CaptureFixture[str]
) -> Iterator[str]:
    for title, files in places.items():
        place = PLACES[title]
        path = Path(place.file)
        sound = path.read_bytes() if path.exists() else None
        for kind, name in files:
            if said := wrong(place, kind, name, capsys):
                yield f"{title} | {kind} {name} | {said}"
        put(path, "", "missing")
        if sound is not None:
            path.write_bytes(sound)


ALL = [*KINDS, *(("", name) for name in NO_FILES)]


def test_each_place_refuses_some_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file once, and every place at least once with a file of its kind."""
    files: dict[str, list[tuple[str, str]]] = {}
    for number, title in enumerate(PLACES):
        files[title] = ALL[number :: len(PLACES)]
    assert list(failures(files, capsys)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("title", PLACES)
def test_each_place_refuses_each_file(
    title: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = PLACES[title]
    make_sound(title, Path(place.file))
    # stored zeros are another result; decisions take a measurement
    assert outcome(place, capsys)[0] == {"expect": 1, "layers": 1, "tuning": 2}.get(title, 0)
    Path("o.onnx").unlink(missing_ok=True)
    assert list(failures({title: ALL}, capsys)) == []


@pytest.mark.parametrize("name", NO_FILES)
def test_somebody_elses_project_is_passed_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pyproject.toml that cannot be read is no recipe; a pipe was waited for."""
    monkeypatch.chdir(tmp_path)
    NO_FILES[name](Path("pyproject.toml"))
    assert find(None) is None
