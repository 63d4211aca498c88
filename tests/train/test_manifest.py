"""Whatever stands in a manifest that should not is refused by file and key, and names no file but those of its folder."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.grad.weights.repairs import Repairs, Tied, Untied
from onnxgrad.train import (
    Adafactor,
    CrossEntropy,
    ProximalPenalty,
    TrainingStep,
    read_step,
    save_step,
    seal_step,
    training_step,
)
from onnxgrad.train.manifest import KEYS, SCHEMA, Fed, Manifest, is_plain
from onnxgrad.train.schedules import Cosine
from tests.train.common import classifier, examples, step

WRONG: tuple[Any, ...] = (
    None,
    True,
    3,
    -1,
    0.5,
    1e999,
    "",
    "text",
    "../x",
    [],
    ["text"],
    [[3]],
    {},
    {"a": 1},
)


def keys(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of JSON's types stands."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from keys(value, (*path, key))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(data)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if value is ...:
        del place[path[-1]]
    return made


def kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def steps() -> dict[str, Any]:
    """Steps that between them have every key."""
    rich = step(
        accumulate=2, clip_norm=0.5, clip_value=1.0, average=0.9, schedule=Cosine(0.1, T_max=5),
        groups={"b*": {"weight_decay": 0.0}}, loss_scale="dynamic", metrics=["gradient_norm"],
    )  # fmt: skip
    loss = CrossEntropy() + ProximalPenalty("w*")
    return {"plain": step(), "rich": rich, "near": training_step(classifier(), loss)}


SMALL = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N, 2, 3] x) => (float[N, 2, 3] logits)
{ n = BatchNormalization (x, s, b, m, v)  d = Dropout (n)  logits = MatMul (d, w) }
"""


def in_training() -> TrainingStep:
    """A step with running statistics, a seed, and labels of a sequence of any length."""
    model = onnx.parser.parse_model(SMALL)
    one = np.ones(2, np.float32)
    for name, a in {"s": one, "b": one, "m": one, "v": one, "w": np.eye(3, dtype="f")}.items():
        model.graph.initializer.append(numpy_helper.from_array(a, name))
    loss = "sequence_cross_entropy{weight=[1,2,5]}"
    return training_step(model, loss, batch_norm="train", dropout="train", accumulate=2)


def test_the_schema_is_that_of_what_is_written(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    by_role = schema["properties"]["inputs"]["properties"]
    assert list(by_role) == list(KEYS)
    for role, keys_of in KEYS.items():
        assert {*keys_of} <= {f.name for f in fields(Fed)} and keys_of["name"], role
    assert schema["properties"].keys() == {"format"} | {f.name for f in fields(Manifest)}
    written: set[str] = set()
    for i, made in enumerate((*steps().values(), in_training(), step(Adafactor()))):
        save_step(made, tmp_path / str(i))
        text = (tmp_path / str(i) / "manifest.json").read_text()
        data = json.loads(text)
        jsonschema.validate(data, schema)
        assert "null" not in text and Manifest.from_json(text) == made.manifest
        each = ((r, fed) for r, feds in data["inputs"].items() for fed in feds)
        written |= data.keys() | {(r, k) for r, fed in each for k in fed}
    wanted = {(role, k) for role, keys_of in KEYS.items() for k in keys_of}
    assert wanted | schema["properties"].keys() == written | {("average", "zeros")}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["plain", "rich", "in_training"])
def test_the_reader_and_the_schema_want_the_same_keys(which: str) -> None:
    """A key of an input or of the file that is gone, strange or null."""
    made = in_training() if which == "in_training" else steps()[which]
    sound = json.loads(made.manifest.to_json())
    valid = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).is_valid
    tried = 0
    for place in places_of(sound):
        # the options of an update are compared with the graphs, afterwards
        if place[0] in ("optimizer", "groups", "schedule", "loss_scaling"):
            continue
        holder: Any = sound
        for key in place[:-1]:
            holder = holder[key]
        changes = [changed(sound, place, None)]
        if isinstance(holder, dict):
            changes += [changed(sound, place, ...), changed(sound, (*place[:-1], "strange"), 1)]
        for data in changes:
            text = json.dumps(data)
            tried += 1
            assert valid(data) == reads(text), (place, text[:200])
    assert tried > 100


def test_repairs_come_back() -> None:
    """A parameter of zeros has no initializer that it begins as."""
    added = Untied("b", None, (("n", 1),), (3,)), Untied("s", "one", (("n", 1), ("m", 1)), (3,))
    repairs = Repairs((Tied("none", "copy", True),), added)
    made = replace(step().manifest, repairs=repairs, metrics=("none",))
    assert Manifest.from_json(made.to_json()) == made
    schema = json.loads(SCHEMA.read_text())
    jsonschema.validate(json.loads(made.to_json()), schema)


def reads(text: str) -> bool:
    try:
        Manifest.from_json(text)
    except InputError:
        return False
    return True


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the one line of a step of `fit`."""
    code = main(["fit", str(folder), "--data", str(folder / "d.npz"), "--steps", "2", "-q"])
    return code, capsys.readouterr().err


def places_of(sound: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every key; of several inputs with one role, those of the first."""
    return [p for p in keys(sound) if p[:1] != ("inputs",) or len(p) < 3 or p[2] == 0]


def expected_count(sound: dict[str, Any]) -> int:
    """Each key of each object, and each element of each list, of every wrong type but as it is."""
    counted = {**sound, "inputs": {role: feds[:1] for role, feds in sound["inputs"].items()}}
    values = list(all_values(counted))
    same = sum(json.dumps(v) == json.dumps(w) for v in values for w in WRONG)
    return len(values) * len(WRONG) - same


def all_values(data: Any) -> Iterator[Any]:
    """What an object or a list holds, at every depth."""
    for value in data.values() if isinstance(data, dict) else data:
        yield value
        if isinstance(value, (dict, list)):
            yield from all_values(value)


def sweep(
    which: str, folder: Path, capsys: pytest.CaptureFixture[str], every: int
) -> tuple[int, list[str]]:
    save_step(steps()[which], folder)
    np.savez(folder / "d.npz", **examples(8))
    path = folder / "manifest.json"
    sound = json.loads(path.read_text())
    assert told(folder, capsys)[0] == 0
    tried, wrong = 0, []
    for n, place in enumerate((p, v) for p in places_of(sound) for v in WRONG):
        if n % every:
            continue
        where, value = place
        old = sound
        for key in where:
            old = old[key]
        if value == old and type(value) is type(old):
            continue
        tried += 1
        path.write_text(json.dumps(changed(sound, where, value)))
        code, line = told(folder, capsys)
        name = next(str(k) for k in reversed(where) if isinstance(k, str))
        named = "manifest.json" in line and name in line
        # a value of the type that the key has, or may have, need not be refused, nor by its key
        fitting = kind(value) is kind(old) or where[0] == "digests"
        if line.count("\n") == (code == 2) and (
            (code == 2 and (named or fitting)) or (code == 0 and fitting)
        ):
            continue
        wrong.append(f"{where} = {value!r}: exit {code} {line.strip()[:200]}")
    return tried, wrong


@pytest.mark.parametrize("which", ["plain", "rich"])
def test_some_keys_of_a_wrong_type(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, wrong = sweep(which, tmp_path, capsys, 151)
    assert tried > 5 and wrong == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["plain", "rich"])
def test_every_key_of_every_wrong_type(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, wrong = sweep(which, tmp_path, capsys, 1)
    save_step(steps()[which], tmp_path)
    assert wrong == []
    assert tried == expected_count(json.loads((tmp_path / "manifest.json").read_text()))


def test_only_plain_names_are_names_of_files() -> None:
    for name in ("a", "a b.onnx", "é漢.onnx", "..a", "a..", "-"):
        assert is_plain(name), name
    for name in ("", ".", "..", "/a", "a/b", "../a", "a\\b", "C:a", "a\0b", "a/"):
        assert not is_plain(name), name


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_step(step(), tmp_path / "st")
    np.savez(tmp_path / "st" / "d.npz", **examples(8))
    return tmp_path / "st"


def edit(folder: Path, **values: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("key", ["train", "eval", "predict", "state", "update"])
@pytest.mark.parametrize("name", ["../out/{}", "{absolute}", "sub/{}", ".."])
def test_no_name_leads_out_of_the_folder(
    key: str, name: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = json.loads((saved / "manifest.json").read_text()).get(key, "update.onnx")
    for folder in (saved.parent / "out", saved / "sub"):
        folder.mkdir()
        if (saved / real).exists():
            shutil.copy(saved / real, folder)
    edit(saved, **{key: name.format(real, absolute=saved.parent / "out" / real)})
    before = {p: p.read_bytes() for p in saved.parent.rglob("*") if p.is_file()}
    code, line = told(saved, capsys)
    assert code == 2 and f"'{key}' must be the name of a file in this folder" in line
    assert {p: p.read_bytes() for p in saved.parent.rglob("*") if p.is_file()} == before


def test_a_link_is_followed_to_a_regular_file_alone(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who names the folder chose its links; a device or a pipe never ends."""
    (saved / "eval.onnx").rename(saved.parent / "moved.onnx")
    (saved / "eval.onnx").symlink_to(saved.parent / "moved.onnx")
    assert told(saved, capsys)[0] == 0
    for name in ("eval.onnx", "state.safetensors", "manifest.json", "d.npz"):
        shutil.copytree(saved, saved.parent / "copy", symlinks=True)
        (saved.parent / "copy" / name).unlink()
        (saved.parent / "copy" / name).symlink_to("/dev/zero")
        code, line = told(saved.parent / "copy", capsys)
        assert code == 2 and name in line and "device" in line, line
        (saved.parent / "copy" / name).unlink()
        os.mkfifo(saved.parent / "copy" / name)
        code, line = told(saved.parent / "copy", capsys)
        assert code == 2 and name in line and "pipe" in line, line
        shutil.rmtree(saved.parent / "copy")


@pytest.mark.parametrize("name", ["train.onnx", "eval.onnx", "predict.onnx", "update.onnx"])
def test_a_changed_graph_is_refused_until_it_is_sealed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_step(step(accumulate=2), tmp_path)
    np.savez(tmp_path / "d.npz", **examples(8))
    changed_model = onnx.load(tmp_path / name)
    changed_model.doc_string = "changed"
    onnx.save(changed_model, tmp_path / name)
    code, line = told(tmp_path, capsys)
    assert code == 2 and f"{name} is not the file that manifest.json was written for" in line
    assert "train-step --seal" in line
    with pytest.raises(InputError, match=r"seal_step\(folder\)"):
        read_step(tmp_path)
    assert main(["train-step", "--seal", str(tmp_path)]) == 0
    assert f"changed: {name}" in capsys.readouterr().out
    assert told(tmp_path, capsys)[0] == 0
    assert seal_step(tmp_path) == ()


def test_weights_beside_a_graph_belong_to_it(tmp_path: Path) -> None:
    save_step(step(), tmp_path)
    evaluation = onnx.load(tmp_path / "eval.onnx")
    evaluation.graph.initializer.append(
        numpy_helper.from_array(np.ones(2048, np.float32), "frozen")
    )
    onnx.save(
        evaluation,
        tmp_path / "eval.onnx",
        save_as_external_data=True,
        location="w.data",
        size_threshold=16,
    )
    assert seal_step(tmp_path) == ("eval.onnx",)
    read_step(tmp_path)
    data = bytearray((tmp_path / "w.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "w.data").write_bytes(data)
    with pytest.raises(InputError, match=r"eval\.onnx is not the file"):
        read_step(tmp_path)


def test_nothing_but_a_step_is_sealed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(saved / "train.onnx", saved / "eval.onnx")
    edit(saved, loss="nothing")
    assert main(["train-step", "--seal", str(saved)]) == 2
    assert "manifest.json: 'loss': the step has no value 'nothing'" in capsys.readouterr().err
    for words in (
        ["train-step"],
        ["train-step", "--seal", str(saved), "m.onnx"],
        ["train-step", "m.onnx"],
    ):
        assert main(words) == 2


def test_a_manifest_that_is_no_json_object(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "[" * 100000, "[]", "null", "{", "\ufeff{}", '{"format": "cake"}'):
        (saved / "manifest.json").write_text(text)
        code, line = told(saved, capsys)
        assert code == 2 and "manifest.json" in line and line.count("\n") == 1
    (saved / "manifest.json").write_bytes(b"\xff\xfe{}")
    assert told(saved, capsys)[0] == 2
