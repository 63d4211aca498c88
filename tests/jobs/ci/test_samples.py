"""Stored samples: outputs may move from them by a bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.jobs.ci.outcome import ModelOutcome
from tests.helpers import parse

RECIPE = """
[verify]
expect = "golden/{name}.npz"
checks = ["onnxruntime"]
[ci]
models = ["m.onnx"]
out = "build"
"""


def save(folder: Path, factor: float = 2.0) -> None:
    text = f"g (float[N,4] x) => (float[N,4] y) <float k = {{{factor}}}> {{ y = Mul(x, k) }}"
    onnx.save(parse(text), folder / "m.onnx")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.toml").write_text(RECIPE)
    save(tmp_path)
    return tmp_path


def only(folder: Path, **options: object) -> ModelOutcome:
    (found,) = onnxgrad.ci(folder / "r.toml", **options).models
    return found


def test_samples_are_recorded_and_bind_later_results(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no golden/m\.npz: `onnxgrad ci --update --record`"):
        only(folder)
    assert only(folder, update=True, record=True).recorded == "golden/m.npz"
    stored = np.load(folder / "golden" / "m.npz")
    assert np.array_equal(stored["y"], 2 * stored["x"])
    assert only(folder).exit_code == 0
    save(folder, 2.01)
    moved = only(folder, update=True)  # which accepts no other behaviour
    assert (moved.status, moved.exit_code) == ("failed", 1)
    assert "outputs moved from m.npz: y[" in moved.error
    (held,) = [h for h in moved.requirements if h.name == "expect"]
    assert held.value == pytest.approx(0.005, rel=0.01) and held.limit == 1e-3
    (folder / "r.toml").write_text(RECIPE.replace("checks", "expect_within = 0.01\nchecks"))
    assert only(folder).exit_code == 0
    assert only(folder, update=True, record=True).exit_code == 0
    assert np.allclose(np.load(folder / "golden" / "m.npz")["y"], 2.01 * stored["x"])


@pytest.mark.parametrize(
    ("recipe", "options", "words"),
    [
        (RECIPE, {"record": True}, "record needs update=True: samples come from accepted"),
        (RECIPE.replace("{name}.npz", "m"), {}, "'golden/m' must end in .npz"),
        (RECIPE.replace("{name}", "{what}"), {}, "unknown field '{what}'; use {name}, {folder}"),
        ("lift = true\n" + RECIPE, {}, "does not apply with lift"),
        (RECIPE.replace("expect", "# "), {"update": True, "record": True}, "nothing to record"),
        (
            RECIPE.replace("{name}", "all").replace("m.onnx", "*.onnx"),
            {"update": True, "record": True},
            "'golden/all.npz' would hold the samples of m.onnx and n.onnx",
        ),
    ],
)
def test_what_is_refused(folder: Path, recipe: str, options: dict[str, bool], words: str) -> None:
    (folder / "r.toml").write_text(recipe)
    (folder / "n.onnx").write_bytes((folder / "m.onnx").read_bytes())
    with pytest.raises(InputError) as raised:
        onnxgrad.ci(folder / "r.toml", **options)
    assert words in str(raised.value)


def test_a_recipe_that_was_found_writes_samples_below_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = folder / "inner"
    inner.mkdir()
    save(inner)
    (inner / "onnxgrad.toml").write_text(RECIPE.replace("golden/", "../golden/"))
    monkeypatch.chdir(inner)
    with pytest.raises(InputError, match=r"lies outside of .* and this recipe was not named"):
        onnxgrad.ci(update=True, record=True)
