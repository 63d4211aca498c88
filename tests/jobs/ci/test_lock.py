"""The lock: what it says comes back, and what is wrong with one is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxgrad.errors import InputError
from onnxgrad.jobs.ci.inputs import Change, Input
from onnxgrad.jobs.ci.lock import Accepted, Lock, NewerLock, changes, read, settled, write
from onnxgrad.jobs.requirements import Facts, Latency

FACTS = Facts(
    inputs={"x": "f32[N,4]", "m": "bool[N]"},
    outputs={"y": "f32[N]"},
    opset={"ai.onnx": 17},
    operators={"Gemm": 2, "Relu": 1},
    parameters=20,
    bytes=300,
    worst=1.5e-7,
    latency=Latency("input", 0.8, 0.7, 0.9),
    memory=100_000,
    memory_on="cpu",
)


def lock_of(models: dict[str, Facts], **others: Any) -> Lock:
    """A lock that accepted these facts."""
    return Lock(
        models,
        dict.fromkeys(models, "1f"),
        inputs=dict.fromkeys(models, Input(producer="here")),
        accepted=dict.fromkeys(models, Accepted("key")),
        **others,
    )


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    models = {"b.onnx": FACTS, "a.onnx": FACTS}
    path = tmp_path / "lock.json"
    lock = lock_of(models, recipe="ci/onnxgrad.toml", made_by="0.0.9")
    assert read(path) is None
    write(path, lock)
    assert read(path) == lock
    assert list(json.loads(path.read_text())["models"]) == ["a.onnx", "b.onnx"]
    bare = lock_of(
        {"a.onnx": replace(FACTS, worst=None, latency=None, memory=None, memory_on=None)}
    )
    write(path, bare)
    assert read(path) == bare and [p.name for p in tmp_path.iterdir()] == ["lock.json"]


def test_the_same_facts_are_the_same_bytes(tmp_path: Path) -> None:
    one = lock_of({"a": FACTS, "b": FACTS}).to_json()
    swapped = replace(FACTS, operators={"Relu": 1, "Gemm": 2})
    assert lock_of({"b": FACTS, "a": swapped}).to_json() == one and one.endswith("}\n")


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda d: d.pop("format"),
            "is not a lock file of onnxgrad; repair it, or write a new lock with",
        ),
        (lambda d: d.update(version="1"), "'version' is '1'"),
        (lambda d: d.update(version=True), "'version' is True"),
        (lambda d: d.pop("models"), "'models' is missing"),
        (lambda d: d.pop("recipe"), "'recipe' is missing"),
        (lambda d: d["models"]["a"].pop("sha256"), "a: 'sha256' is missing"),
        (lambda d: d["models"]["a"].pop("input"), "a: 'input' is missing"),
        (lambda d: d["models"]["a"].pop("accepted"), "a: 'accepted' is missing"),
        (lambda d: d.update(models=[]), "'models' cannot be []"),
        (lambda d: d["models"].update(a=3), "a is not an object"),
        (lambda d: d["models"]["a"].pop("bytes"), "a: 'bytes' is missing"),
        (lambda d: d["models"]["a"].update(bytes="300"), "a: 'bytes' cannot be '300'"),
        (lambda d: d["models"]["a"].update(bytes=-1), "a: 'bytes' cannot be -1"),
        (lambda d: d["models"]["a"].update(bytes=True), "a: 'bytes' cannot be True"),
        (lambda d: d["models"]["a"].update(worst=float("nan")), "a: 'worst' cannot be nan"),
        (lambda d: d["models"]["a"]["operators"].update(Gemm=None), "a: operators: 'Gemm' cannot"),
        (lambda d: d["models"]["a"]["latency"].pop("low"), "a: latency: 'low' is missing"),
        (lambda d: d["models"]["a"].update(inputs={"x": 3}), "a: inputs: 'x' cannot be 3"),
    ],
)
def test_what_hands_break_is_named(tmp_path: Path, edit: Edit, words: str) -> None:
    data = json.loads(lock_of({"a": FACTS}).to_json())
    edit(data)
    path = tmp_path / "lock.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as raised:
        read(path)
    text = str(raised.value)
    assert text.startswith(str(path)) and words in text and "onnxgrad ci --update" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON: "),
        (b'{\n<<<<<<< HEAD\n"a": 1\n=======\n', "not JSON (an unfinished merge)"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[]", "is not a lock file of onnxgrad"),
    ],
)
def test_what_is_no_lock_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "lock.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read(path)
    assert words in str(raised.value)


def test_a_lock_of_a_newer_version_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    path.write_text('{"format": "onnxgrad lock", "version": 2, "anything": []}')
    with pytest.raises(NewerLock, match="reads up to 1: install a newer one"):
        read(path)


def test_changes_are_named_one_by_one() -> None:
    after = replace(
        FACTS,
        inputs={"m": "bool[N]", "x": "f32[N,5]"},
        operators={"Gemm": 1, "Tanh": 4},
        bytes=200,
        worst=1e-5,
        latency=Latency("input", 0.5, 0.4, 0.6),
    )
    assert changes(FACTS, after) == (
        Change("inputs.x", "f32[N,4]", "f32[N,5]"),
        Change("order of inputs", "x, m", "m, x"),
        Change("nodes", 3, 5),
        Change("operators.Gemm", 2, 1),
        Change("operators.Relu", 1, None),
        Change("operators.Tanh", None, 4),
        Change("bytes", 300, 200),
        Change("worst", 1.5e-7, 1e-5),
        Change("latency", 0.8, 0.5),
    )
    assert changes(FACTS, FACTS) == ()


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ({"worst": 2.9e-7}, True),
        ({"worst": 3.1e-7}, False),
        ({"worst": 0.0}, False),
        ({"worst": None}, False),
        ({"latency": Latency("input", 0.95, 0.89, 1.0)}, True),
        ({"latency": Latency("input", 0.95, 0.91, 1.0)}, False),
        ({"latency": Latency("input", 0.83, 0.901, 0.902)}, True),  # by less than a twentieth
        ({"latency": Latency("old.onnx", 0.8, 0.7, 0.9)}, False),
        ({"latency": Latency("input", 0.8, 0.7, 0.9, "wall")}, False),
        ({"latency": None}, True),  # not measured this time
        ({"memory": 104_000}, True),
        ({"memory": 106_000}, False),
        ({"memory": None, "memory_on": None}, True),
        ({"memory_on": "cuda"}, False),
    ],
)
def test_measuring_again_is_no_change(after: dict[str, Any], same: bool) -> None:
    found = replace(FACTS, **after)
    assert (changes(FACTS, found) == ()) is same
    assert (settled(found, FACTS) == FACTS) is same
    assert settled(found, None) == found
