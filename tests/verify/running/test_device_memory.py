"""The count of a device's memory: read from onnxruntime's profile, believed if it is right of a known model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify.running.child_sessions import CPU, Sessions, _most_in_use
from onnxgrad.verify.running.device_memory import peak_on_device
from tests.helpers import parse
from tests.verify.running.test_child_sessions import CONFIG

SQUARE = {"x": np.zeros((256, 256), np.float32)}


def test_a_profile_has_the_count_of_the_arena(tmp_path: Path) -> None:
    """What memory on a device is read from, on the CPU, where inputs are not in the arena."""
    body = "{ a = MatMul (x, x) b = Exp (a) y = MatMul (a, b) }"
    model = parse(f"g (float[256, 256] x) => (float[256, 256] y) {body}")
    model.graph.node[1].name = 'e"mem_in_use_peak" : "9"'  # which onnxruntime does not escape
    sessions = Sessions()
    config = CONFIG | {"profile": str(tmp_path / "run")}
    sessions.open("a", model.SerializeToString(), config)
    assert sessions.peak("a", SQUARE, CPU) == 3 * 256 * 256 * 4
    assert not sessions.has("a")
    sessions.open("a", model.SerializeToString(), config)
    assert sessions.peak("a", SQUARE, "CUDAExecutionProvider") is None


def test_a_profile_that_ends_early_has_no_count(tmp_path: Path) -> None:
    node = '{"name" :"a","args" : {"provider" : "P","mem_in_use_peak" : "%d"}},\n'
    path = tmp_path / "run.json"
    path.write_text("[\n" + node % 5 + node % 3)
    assert _most_in_use(str(path), "P") == 5
    path.write_text(path.read_text() + '{"cat" : "Session","name" :"profile_truncated"}\n]\n')
    with pytest.raises(RuntimeError, match="more nodes run than"):
        _most_in_use(str(path), "P")


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (lambda feeds: 2 * feeds["x"].nbytes, None),  # input and weight, as a device holds them
        (lambda feeds: 0, "counts 4,194,304 bytes of a model that has 12,582,912"),
        (lambda feeds: feeds["x"].nbytes, "counts 8,388,608 bytes"),
        (lambda feeds: 9 * feeds["x"].nbytes, "counts 41,943,040 bytes"),
    ],
)
def test_a_count_is_believed_if_it_is_right_of_a_known_model(beside: Any, said: str | None) -> None:
    """The CPU stands for a device that counts so much `beside` the values."""
    sessions, folders = Sessions(), set[Path]()

    def ask(_: str, verb: str, *arguments: Any) -> Any:
        if verb == "open":
            folders.add(Path(arguments[-1]["profile"]).parent)
            assert all(folder.is_dir() for folder in folders)
            return sessions.open(*arguments)
        found = sessions.peak(*arguments)
        assert verb == "peak" and found is not None
        return found + beside(arguments[1])

    model = parse("g (float[256, 256] x) => (float[256, 256] y) { y = MatMul (x, x) }")
    count = (ask, model.SerializeToString(), CONFIG, SQUARE, "1.99")
    if said is None:
        assert peak_on_device(*count) == 3 * 256 * 256 * 4
    else:
        with pytest.raises(InputError, match=f"runtime 1.99 {said}.*require memory in a recipe"):
            peak_on_device(*count)
    # the profiles lay in a folder of their own
    assert len(folders) == 1 and not any(
        f.exists() or f == Path(tempfile.gettempdir()) for f in folders
    )
