"""Variants of a model, and results that the lock accepted: which run again, which are removed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.jobs.ci import accepted
from onnxgrad.jobs.ci.accepted import digest_of_result, key_of
from onnxgrad.jobs.ci.outcome import CiReport
from onnxgrad.results import in_form
from onnxgrad.verify.running.runtimes import Runtime
from tests.helpers import ROOT, parse

RECIPE = """
[verify]
checks = ["onnxruntime"]
[ci]
models = ["*.onnx"]
out = "build"
"""
VARIANTS = """
[models."a.onnx".variants.fp16]
float16 = true
require = { bytes = "<= -20%" }
[models."a.onnx".variants.two]
preset = "clean"
fix_dim = { N = 2 }
metadata = { size = "two rows" }
"""


def save(folder: Path, name: str, factor: float = 1.0) -> None:
    model = parse("g (float[N,64] x) => (float[N,32] y) { p = MatMul(x, w)  y = Relu(p) }")
    weight = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32) * factor
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, folder / f"{name}.onnx")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "ab":
        save(tmp_path, name)
    (tmp_path / "r.toml").write_text(RECIPE)
    return tmp_path


def run(folder: Path, **options: Any) -> CiReport:
    return onnxgrad.ci(folder / "r.toml", **options)


def unchanged(report: CiReport) -> list[str]:
    return [m.name for m in report.models if m.unchanged]


def test_variants_are_proved_locked_and_budgeted(folder: Path) -> None:
    (folder / "r.toml").write_text(RECIPE + VARIANTS)
    report = run(folder, update=True)
    names = ["a.onnx", "a.onnx:fp16", "a.onnx:two", "b.onnx"]
    assert report.ok and [m.name for m in report.models] == names
    built = {p.name: onnx.load(p) for p in (folder / "build").iterdir()}
    assert sorted(built) == ["a.fp16.onnx", "a.onnx", "a.two.onnx", "b.onnx"]
    half = [t.data_type for t in built["a.fp16.onnx"].graph.initializer]
    assert onnx.TensorProto.FLOAT16 in half and onnx.TensorProto.FLOAT not in half
    assert built["a.two.onnx"].graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert built["a.two.onnx"].metadata_props[0].value == "two rows"
    (fp16,) = [m for m in report.models if m.variant == "fp16"]
    assert fp16.file == "a.onnx" and fp16.result is not None and fp16.given is not None
    assert fp16.result.bytes < 0.6 * fp16.given.bytes and (fp16.result.worst or 0) > 1e-6
    assert fp16.notes[0].startswith("converted to float16 after the passes: ")
    assert "within bounds" in fp16.notes[0] and fp16.requirements[0].name == "bytes"
    lock = json.loads((folder / "r.lock.json").read_text())["models"]
    assert sorted(lock) == names and lock["a.onnx:two"]["inputs"] == {"x": "f32[2,64]"}
    assert unchanged(run(folder)) == names
    assert "a.onnx:fp16" in in_form("page", report)

    tight = VARIANTS.replace("float16 = true", "float16 = { rtol = 1e-9 }")
    (folder / "r.toml").write_text(RECIPE + tight)
    report = run(folder, keep_going=True)
    assert [m.name for m in report.models if not m.ok] == ["a.onnx:fp16"]
    assert not (folder / "build" / "a.fp16.onnx").exists()


REAL = """
[verify]
checks = ["onnxruntime"]
dims = { batch = 2 }
[bench]
seconds = 0.05
rounds = 3
[ci]
models = ["lstm.onnx"]
out = "build"
[models."lstm.onnx".variants.fp16]
float16 = { rtol = 0.02, atol = 0.02 }
require = { bytes = "<= -50%", latency = "<= 100" }
[models."lstm.onnx".variants.five]
fix_dim = { batch = 5 }
float16 = { metric = "cosine=0.999" }
"""


@pytest.mark.slow
def test_variants_of_a_real_model(tmp_path: Path) -> None:
    """A float16 variant has bounds and a latency budget of its own, and a variant of a fixed size
    runs at it, whatever the size of the others' proofs.
    """
    shutil.copy(ROOT / "models" / "lstm_script.onnx", tmp_path / "lstm.onnx")
    names = ["lstm.onnx", "lstm.onnx:fp16", "lstm.onnx:five"]
    (tmp_path / "r.toml").write_text(REAL)
    report = run(tmp_path, update=True)
    assert report.ok and [m.name for m in report.models] == names
    plain, fp16, five = report.models
    assert fp16.result is not None and fp16.result.latency is not None
    assert plain.result is not None and plain.result.latency is None
    assert (fp16.result.worst or 0) > 100 * (plain.result.worst or 0)
    assert five.result is not None and "[5," in " ".join(five.result.inputs.values())
    lock = json.loads((tmp_path / "r.lock.json").read_text())["models"]
    assert sorted(lock) == sorted(names) and lock["lstm.onnx:fp16"]["latency"]["against"] == "input"
    again = run(tmp_path)
    assert again.ok and unchanged(again) == names

    for old, new, words in (
        ('"<= 100"', '"<= 0.001"', "latency"),
        ("rtol = 0.02, atol = 0.02", "rtol = 1e-9, atol = 0", "float16"),
        ('"<= -50%"', '"<= -90%"', "bytes, not <= -90%"),
    ):
        (tmp_path / "r.toml").write_text(REAL.replace(old, new))
        missed = run(tmp_path, keep_going=True)
        bad = [m for m in missed.models if not m.ok]
        assert missed.exit_code == 1 and [m.name for m in bad] == ["lstm.onnx:fp16"], new
        assert words in bad[0].error and unchanged(missed) == ["lstm.onnx", "lstm.onnx:five"]
        assert not (tmp_path / "build" / "lstm.fp16.onnx").exists()
        assert (tmp_path / "build" / "lstm.onnx").exists()


def test_sizes_of_a_proof_that_the_file_fixes(folder: Path) -> None:
    """The table `verify` is for all results, also for those whose sizes are fixed."""
    sizes = RECIPE.replace("[verify]\n", "[verify]\ndims = { N = 3 }\n")
    (folder / "r.toml").write_text(sizes + VARIANTS)
    report = run(folder, only=["two", "b*"], update=True)
    assert report.ok and len(report.models) == 2
    with pytest.raises(InputError, match="no input has a dimension 'M'"):
        onnxgrad.optimize(folder / "a.onnx", fix_dims={"N": 2}, dims={"M": 3})


def test_results_with_names_of_variants(folder: Path) -> None:
    (folder / "r.toml").write_text(
        RECIPE.replace('"build"', '"build/{variant}/{name}.onnx"') + VARIANTS
    )
    run(folder, only=["fp16", "b*"])
    made = [p.relative_to(folder / "build").as_posix() for p in (folder / "build").rglob("*.onnx")]
    assert sorted(made) == ["b.onnx", "fp16/a.onnx"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[models."a.onnx".variants."a b"]\n', "variants: 'a b' cannot be a name"),
        ('[models."a.onnx".variants.x]\nnone = 1\n', "variants.x: unknown key 'none'"),
        ('[models."a.onnx".variants.x]\nfloat16 = { kepp = ["w"] }\n', "did you mean 'keep'"),
        ('[models."a.onnx"]\nvariants = 3\n', "'variants' must be a table"),
    ],
)
def test_variants_that_are_refused(folder: Path, more: str, words: str) -> None:
    (folder / "r.toml").write_text(RECIPE + more)
    with pytest.raises(InputError) as raised:
        run(folder)
    assert words in str(raised.value)


def test_what_changed_runs_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unchanged(run(folder, update=True)) == []
    first = run(folder)
    assert unchanged(first) == ["a.onnx", "b.onnx"] and first.ok
    assert [m.status for m in first.models] == ["passed", "passed"]
    assert "unchanged" in str(first)
    assert unchanged(run(folder, all=True)) == []
    save(folder, "a", 2.0)
    assert unchanged(run(folder)) == ["b.onnx"]
    (folder / "build" / "b.onnx").unlink()
    assert unchanged(run(folder)) == []
    assert (folder / "build" / "b.onnx").exists()
    save(folder, "a")
    run(folder)
    assert unchanged(run(folder)) == ["a.onnx", "b.onnx"]
    (folder / "r.toml").write_text(RECIPE.replace('"onnxruntime"]', '"onnxruntime"]\nseeds = [3]'))
    assert unchanged(run(folder)) == []
    (folder / "r.toml").write_text(RECIPE)
    monkeypatch.setattr(accepted, "versions", lambda: {"onnxruntime": "0.1"})
    assert unchanged(run(folder)) == []


def test_another_onnxruntime_in_another_interpreter_runs_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the recipe names the interpreter as before; providers of this one have no version."""
    (folder / "b.onnx").unlink()
    others = f"runtimes = [{sys.executable!r}, 'CPUExecutionProvider{{}}']\n"
    (folder / "r.toml").write_text(others + RECIPE)
    assert run(folder, update=True).ok and unchanged(run(folder)) == ["a.onnx"]
    asked = []

    def newer(runtime: Runtime) -> dict[str, str]:
        asked.append(runtime.python)
        return {"onnxruntime": "9.9"}

    monkeypatch.setattr(accepted, "versions_in", newer)
    assert unchanged(run(folder)) == [] and asked == [sys.executable]
    (folder / "r.toml").write_text(others.replace(sys.executable, str(folder / "none")) + RECIPE)
    report = run(folder)
    assert report.exit_code == 2 and "no such interpreter" in report.models[0].error


def test_the_key_reads_files_and_not_their_places(tmp_path: Path) -> None:
    keys = []
    for name, content in (("one", b"1"), ("two", b"1"), ("other", b"2")):
        place = tmp_path / name
        place.mkdir()
        (place / "p.py").write_bytes(content)
        file = str(place / "p.py")
        keys.append(key_of("d", {"inputs": [file], "preset": "clean"}, [file], str(place)))
    assert keys[0] == keys[1] != keys[2]
    assert key_of("e", {}, [], "") != key_of("d", {}, [], "")


def test_only_some(folder: Path) -> None:
    report = run(folder, only=["b*"], update=True)
    assert [m.name for m in report.models] == ["b.onnx"] and not report.gone
    assert [*json.loads((folder / "r.lock.json").read_text())["models"]] == ["b.onnx"]
    assert run(folder, only=["a"], update=True).ok
    assert [*json.loads((folder / "r.lock.json").read_text())["models"]] == ["a.onnx", "b.onnx"]
    with pytest.raises(InputError, match=r"only: 'c\*' matches none of the models"):
        run(folder, only=["c*"])


def test_an_update_accepts_what_passed(folder: Path) -> None:
    assert run(folder, update=True).ok
    before = json.loads((folder / "r.lock.json").read_text())["models"]
    save(folder, "b", 2.0)
    (folder / "a.onnx").write_bytes(b"no model")
    report = run(folder, update=True, keep_going=True)
    assert report.exit_code == 2 and report.updated and report.left == ["a.onnx"]
    assert "r.lock.json: not accepted: a.onnx" in str(report)
    after = json.loads((folder / "r.lock.json").read_text())["models"]
    assert after["a.onnx"] == before["a.onnx"] and after["b.onnx"] != before["b.onnx"]


@pytest.mark.parametrize("touched", [False, True])
def test_results_that_are_left_over(folder: Path, touched: bool) -> None:
    assert run(folder, update=True).ok
    (folder / "b.onnx").unlink()
    result = folder / "build" / "b.onnx"
    if touched:
        onnx.save(parse("g (float[1] x) => (float[1] y) { y = Abs(x) }"), result)
    (found,) = run(folder).leftovers
    assert "build/b.onnx: the result of b.onnx, which left the recipe; " in str(found)
    assert result.exists() and "--prune" in found.why
    report = run(folder, prune=True, update=True)
    assert report.leftovers[0].removed is not touched and result.exists() is touched
    assert ("it stays" in str(report)) is touched and report.ok
    assert run(folder).leftovers == ()


def test_only_results_below_the_folder_are_removed(folder: Path, tmp_path: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    save(inner, "a")
    save(folder, "victim")
    (inner / "r.toml").write_text(RECIPE)
    assert onnxgrad.ci(inner / "r.toml", update=True).ok
    data = json.loads((inner / "r.lock.json").read_text())
    digest = digest_of_result(folder / "victim.onnx")
    entry = {**data["models"]["a.onnx"]}
    entry["accepted"] = {"key": "", "sha256": digest, "output": "../victim.onnx"}
    data["models"]["gone.onnx"] = {**entry, "accepted": {**entry["accepted"], "digest": digest}}
    (inner / "r.lock.json").write_text(json.dumps(data))
    assert onnxgrad.ci(inner / "r.toml", prune=True).leftovers == ()
    assert (folder / "victim.onnx").exists()
