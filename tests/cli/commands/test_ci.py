"""`onnxgrad ci` as an engineer meets it at the end of a pipeline."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.jobs.ci import workers
from onnxgrad.jobs.ci.outcome import ModelOutcome
from onnxgrad.jobs.ci.work import Job, work
from onnxgrad.report.ci import SCHEMA
from tests.cli.conftest import BRANCHES, Result
from tests.helpers import parse
from tests.report.html.common import data_of

Run = Callable[..., Result]
SMALL = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
  { a = Identity(x)  b = MatMul(a, w)  y = Relu(b) }"""
RECIPE = """
[ci]
models = ["models/*.onnx"]
out = "build/{name}.onnx"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, and a recipe that takes both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    onnx.save(parse(BRANCHES), tmp_path / "models" / "branches.onnx")
    onnx.save(parse(SMALL), tmp_path / "models" / "small.onnx")
    (tmp_path / "onnxgrad.toml").write_text(RECIPE)
    return tmp_path


def report(result: Result) -> dict[str, Any]:
    """What `--json -` wrote, which is what the schema says."""
    data: dict[str, Any] = json.loads(result.out)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(data)
    assert data["exit_code"] == result.code
    return data


def statuses(result: Result) -> dict[str, str]:
    return {m["name"]: m["status"] for m in report(result)["models"]}


def test_a_first_day(folder: Path, run: Run) -> None:
    first = run("ci")
    assert first.code == 0 and "no onnxgrad.lock.json to compare with" in first.out
    assert len(onnx.load(folder / "build" / "small.onnx").graph.node) == 2
    assert not (folder / "onnxgrad.lock.json").exists()
    assert run("ci", "--update").code == 0
    lock = (folder / "onnxgrad.lock.json").read_bytes()
    again = run("ci", "--json", "-")
    assert statuses(again) == {"models/branches.onnx": "passed", "models/small.onnx": "passed"}
    assert run("ci", "--update").code == 0
    assert (folder / "onnxgrad.lock.json").read_bytes() == lock


def test_what_changed_since_the_lock_is_said(folder: Path, run: Run) -> None:
    assert run("ci", "--update").code == 0
    onnx.save(
        parse(SMALL.replace("Relu", "Tanh").replace("x) =>", "z) =>").replace("(x)", "(z)")),
        folder / "models" / "small.onnx",
    )
    result = run("ci", "--json", "-")
    changed = report(result)["models"][0]
    assert result.code == 0 and changed["status"] == "changed"
    assert changed["changes"] == [
        {"what": "inputs.x", "before": "f32[N,4]", "after": None},
        {"what": "inputs.z", "before": None, "after": "f32[N,4]"},
        {"what": "operators.Relu", "before": 1, "after": None},
        {"what": "operators.Tanh", "before": None, "after": 1},
    ]
    shown = run("ci").out
    assert "changed operators.Relu: 1 → none" in shown and shown.index("changed") < shown.index(
        "passed"
    )


def test_a_budget_that_is_missed(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").write_text(
        RECIPE + '[models."small.onnx"]\nrequire = { nodes = "<= 1", bytes = "<= -1%" }\n'
    )
    result = run("ci", "--keep-going")
    assert result.code == 1
    assert "required nodes <= 1, found 2, allowed 1" in result.out
    assert "required bytes" not in result.out  # which it does
    assert not (folder / "build" / "small.onnx").exists()
    assert (folder / "build" / "branches.onnx").exists()
    failed = report(run("ci", "--keep-going", "--json", "-"))["models"][0]
    assert failed["status"] == "failed" and failed["output"] is None
    assert [(r["name"], r["held"]) for r in failed["requirements"]] == [
        ("nodes", False),
        ("bytes", True),
    ]


def test_the_first_failure_ends_it_unless_asked(folder: Path, run: Run) -> None:
    (folder / "models" / "branches.onnx").write_bytes(b"no model")
    first = run("ci", "--json", "-")
    assert first.code == 2 and first.err.startswith("onnxgrad: models/branches.onnx: not an ONNX")
    assert statuses(first) == {"models/branches.onnx": "error", "models/small.onnx": "skipped"}
    assert not (folder / "build" / "small.onnx").exists()
    assert "skipped after a model that failed: `--keep-going` runs all" in run("ci").out
    every = run("ci", "--json", "-", "--keep-going")
    assert every.code == 2 and statuses(every)["models/small.onnx"] == "passed"
    assert (folder / "build" / "small.onnx").exists()
    assert str(folder) not in every.out  # messages are the same on every machine


def test_an_update_leaves_what_did_not_pass(folder: Path, run: Run) -> None:
    assert run("ci", "--update").code == 0
    lock = (folder / "onnxgrad.lock.json").read_bytes()
    (folder / "models" / "branches.onnx").write_bytes(b"no model")
    failed = run("ci", "--update", "--keep-going")
    assert (
        failed.code == 2 and "onnxgrad.lock.json: not accepted: models/branches.onnx" in failed.out
    )
    assert (folder / "onnxgrad.lock.json").read_bytes() == lock


def test_models_that_are_new_or_gone(folder: Path, run: Run) -> None:
    assert run("ci", "--update").code == 0
    (folder / "models" / "small.onnx").rename(folder / "models" / "other.onnx")
    result = run("ci", "--keep-going", "--json", "-")
    assert result.code == 1
    assert statuses(result) == {"models/other.onnx": "unknown", "models/branches.onnx": "passed"}
    assert report(result)["lock"]["gone"] == ["models/small.onnx"]
    assert report(result)["lock"]["renamed"] == {"models/small.onnx": "models/other.onnx"}
    assert "(models/other.onnx has the same bytes)" in result.err
    page = run("ci", "--keep-going", "--html", "ci.html", "--markdown", "ci.md")
    assert page.out.startswith("onnxgrad.toml: refused: 1 of 2 models, 1 model of the lock gone\n")
    assert "| gone | models/small.onnx |" in (folder / "ci.md").read_text()
    (first, *_) = data_of((folder / "ci.html").read_text(encoding="utf-8"))["reports"]
    assert any("other.onnx has the same bytes" in note for note, _ in first["verdict"]["notes"])
    assert "run `onnxgrad ci --update`" in result.err
    assert not (folder / "build" / "other.onnx").exists()
    assert run("ci", "--update").code == 0
    assert run("ci").code == 0


def test_a_model_that_is_gone_alone(folder: Path, run: Run) -> None:
    assert run("ci", "--update").code == 0
    (folder / "models" / "small.onnx").unlink()
    result = run("ci")
    assert result.code == 1 and "models/small.onnx: gone since onnxgrad.lock.json" in result.out
    quiet = run("ci", "-q")
    assert (quiet.code, quiet.out) == (1, "") and "models/small.onnx: gone since" in quiet.err


def test_bounds_by_the_lock(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").write_text(
        'require = { nodes = "<= baseline", interface = "== baseline" }\n' + RECIPE
    )
    without = run("ci", "--keep-going")
    assert without.code == 1 and without.err.count("it has no baseline") == 4
    assert run("ci", "--update").code == 0 and run("ci").code == 0
    onnx.save(
        parse(SMALL.replace("Relu(b)", "Tanh(c)  c = Relu(b)")), folder / "models" / "small.onnx"
    )
    worse = run("ci", "--keep-going")
    assert worse.code == 1 and "3 nodes, not <= baseline (2)" in worse.err
    assert run("ci", "--update").code == 0  # which is how one says yes
    assert run("ci").code == 0


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        ("<<<<<<< HEAD", "an unfinished merge"),
        (
            '{"format": "onnxgrad lock", "version": 1, "models": {"a": {}}}',
            "a: 'latency' is missing",
        ),
        ('{"format": "onnxgrad lock", "version": 7}', "install a newer one"),
    ],
)
def test_a_lock_that_cannot_be_read(folder: Path, run: Run, lock: str, words: str) -> None:
    (folder / "onnxgrad.lock.json").write_text(lock)
    result = run("ci")
    assert result.code == 2 and len(result.lines) == 1 and words in result.err
    assert not (folder / "build").exists()


def test_paths_are_those_of_the_recipe(folder: Path, run: Run, monkeypatch: Any) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert run("ci", "../onnxgrad.toml", "--update").code == 0
    assert (folder / "build" / "small.onnx").exists() and (folder / "onnxgrad.lock.json").exists()
    assert list((folder / "elsewhere").iterdir()) == []
    monkeypatch.chdir(folder)
    assert set(statuses(run("ci", "--json", "-"))) == {"models/branches.onnx", "models/small.onnx"}


def test_a_checkout_that_cannot_be_written(folder: Path, run: Run) -> None:
    (folder / "build").write_text("a file where the folder would be")
    result = run("ci")
    assert result.code == 2 and len(result.lines) == 1 and "out: " in result.err
    (folder / "onnxgrad.toml").write_text('[ci]\nmodels = ["models/*.onnx"]\nlock = "build/l"\n')
    refused = run("ci", "--update")
    assert refused.code == 2 and "build/l: cannot be " in refused.err
    (folder / "onnxgrad.toml").write_text('[ci]\nmodels = ["models/*.onnx"]\n')
    assert run("ci").code == 0  # nothing is to be written


def test_a_result_that_computes_something_else(folder: Path, run: Run) -> None:
    (folder / "wrong.py").write_text(
        "from onnxgrad import P, capture, op, rewrite\n"
        "from onnxgrad.rewrite.worklist import count\nx = capture('x')\n"
        "@rewrite(P.Relu(x), shrinks=count())\ndef relu_is_nothing(x):\n"
        '    """Relu(x) = x"""\n    return x\n'
    )
    result = run("ci", "--plugin", "wrong.py", "--keep-going", "--json", "-")
    assert result.code == 1 and statuses(result)["models/small.onnx"] == "different"
    assert "relu_is_nothing" in result.err and not (folder / "build" / "small.onnx").exists()


@pytest.mark.slow
def test_what_only_measuring_tells(folder: Path, run: Run) -> None:
    onnx.save(parse(SMALL), folder / "old.onnx")
    (folder / "onnxgrad.toml").write_text("""
require = { latency = "<= 100", memory = "<= 1GB" }
[bench]
seconds = 0.01
rounds = 2
[ci]
models = ["models/*.onnx"]
[models."small.onnx"]
require = { latency = "<= 0.0001 of old.onnx" }
""")
    result = run("ci", "--json", "-", "--keep-going")
    small, branches = report(result)["models"]
    assert (small["status"], branches["status"]) == ("failed", "passed")
    assert small["result"]["latency"]["against"] == "old.onnx"
    assert branches["result"]["latency"]["against"] == "input"
    assert branches["given"]["memory"] > 0 and branches["result"]["memory"] > 0
    assert "), not <= 0.0001 of old.onnx" in small["error"]
    (folder / "old.onnx").unlink()
    assert "there is no file 'old.onnx'" in run("ci").err


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ('[ci]\nmodels = ["models/*.onnx"]\nout_dir = "b"\n', "unknown key 'out_dir'"),
        ('[ci]\nmodels = ["modles/*.onnx"]\n', "no file matches 'modles/*.onnx'"),
        (
            'preset = "fastest"\n' + RECIPE,
            "must be one of clean, default, inference, canonical, training-safe, not 'fastest'",
        ),
        ("", "names no models: write models = "),
        ("x = [", "not TOML"),
    ],
)
def test_what_is_refused_before_any_work(folder: Path, run: Run, recipe: str, words: str) -> None:
    (folder / "onnxgrad.toml").write_text(recipe)
    result = run("ci")
    assert result.code == 2 and len(result.lines) == 1
    assert words in result.err and "onnxgrad.toml" in result.err
    assert not (folder / "build").exists()


def test_where_a_recipe_is_found(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").rename(folder / "other.toml")
    assert "there is no onnxgrad.toml here" in run("ci").err
    (folder / "pyproject.toml").write_text(
        '[tool.onnxgrad.ci]\nmodels = ["models/s*.onnx"]\n[tool.onnxgrad.require]\nRelu = 1\n'
    )
    assert run("ci").code == 0
    (folder / "other.toml").rename(folder / "onnxgrad.toml")
    both = run("ci")
    assert both.code == 2 and "keep one of them" in both.err


def test_the_recipe_is_the_one_of_optimize(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").write_text(
        'require = { nodes = "<= 1", latency = "<= 1", bytes = "<= baseline" }\n' + RECIPE
    )
    result = run("optimize", "models/small.onnx", "-o", "out.onnx")
    assert result.code == 1 and "2 nodes, not <= 1" in result.err
    assert "latency, bytes: only `onnxgrad ci` checks" in result.err


def test_a_recipe_that_does_not_verify_is_refused_unless_it_says_so(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").write_text("verify.run = false\n" + RECIPE)
    refused = run("ci", "--keep-going", "--json", "-")
    assert refused.code == 1 and set(statuses(refused).values()) == {"unproved"}
    assert "nothing was proved: onnxgrad.toml has verify.run = false" in refused.err
    assert not list((folder / "build").iterdir())
    (folder / "onnxgrad.toml").write_text("verify.run = false\nallow_unproved = true\n" + RECIPE)
    allowed = run("ci", "--json", "-")
    assert allowed.code == 0 and set(statuses(allowed).values()) == {"unproved"}
    assert len(list((folder / "build").iterdir())) == 2
    assert run("ci").out.startswith(
        "onnxgrad.toml: accepted: 2 models; not proved: 2, which the recipe allows\n"
    )


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("requirement", ()),
        # of workers tests/jobs/ci/test_workers.py has quicker ones
        pytest.param("requirement", ("--keep-going", "--jobs", "2"), marks=pytest.mark.slow),
        ("unreadable", ("--keep-going",)),
        ("unknown", ()),
        ("unproved", ()),
    ],
)
def test_no_older_result_stays_in_place_of_a_refused_one(
    folder: Path, run: Run, why: str, words: tuple[str, ...]
) -> None:
    assert run("ci", "--update").code == 0
    older = folder / "build" / "small.onnx"
    assert older.exists()
    if why == "requirement":
        more = '[models."small.onnx"]\nrequire = { nodes = "<= 1" }\n'
        (folder / "onnxgrad.toml").write_text(RECIPE + more)
    elif why == "unreadable":
        (folder / "models" / "small.onnx").write_bytes(b"no model")
    elif why == "unproved":
        (folder / "onnxgrad.toml").write_text(
            RECIPE + '[models."small.onnx"]\nverify.run = false\n'
        )
    else:
        lock = json.loads((folder / "onnxgrad.lock.json").read_text())
        del lock["models"]["models/small.onnx"]
        (folder / "onnxgrad.lock.json").write_text(json.dumps(lock))
    result = run("ci", "--json", "-", *words)
    model = next(m for m in report(result)["models"] if m["name"] == "models/small.onnx")
    assert result.code > 0 and model["removed"] == "build/small.onnx" and not older.exists()
    assert "; the older result build/small.onnx is removed" in result.err
    assert (folder / "build" / "branches.onnx").exists()


def test_the_weights_of_an_older_result_go_with_it_and_no_other_file(
    folder: Path, run: Run
) -> None:
    model = parse(SMALL)
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, folder / "models" / "small.onnx", save_as_external_data=True, size_threshold=0)
    assert run("ci").code == 0 and len(list((folder / "build").iterdir())) == 3
    (folder / "build" / "mine.txt").touch()
    more = '[models."small.onnx"]\nrequire = { nodes = "<= 1" }\n'
    (folder / "onnxgrad.toml").write_text(RECIPE + more)
    assert run("ci").code == 1
    assert {p.name for p in (folder / "build").iterdir()} == {"branches.onnx", "mine.txt"}
    # what is no model was not written by us
    (folder / "build" / "small.onnx").write_text("somebody's")
    assert run("ci").code == 1 and (folder / "build" / "small.onnx").exists()


def test_each_recipe_of_a_folder_has_a_lock(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").write_text('[ci]\nmodels = ["models/small.onnx"]\n')
    (folder / "mobile.toml").write_text('[ci]\nmodels = ["models/branches.onnx"]\n')
    assert run("ci", "--update").code == run("ci", "mobile.toml", "--update").code == 0
    assert (folder / "mobile.lock.json").exists()
    assert run("ci").code == run("ci", "mobile.toml").code == 0
    (folder / "mobile.toml").write_text(
        '[ci]\nmodels = ["models/branches.onnx"]\nlock = "onnxgrad.lock.json"\n'
    )
    before = (folder / "onnxgrad.lock.json").read_bytes()
    refused = run("ci", "mobile.toml", "--update")
    assert refused.code == 2 and "is the lock of onnxgrad.toml; write another" in refused.err
    assert (folder / "onnxgrad.lock.json").read_bytes() == before


def test_an_interruption_writes_no_lock(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def interrupted(job: Job, **_: Any) -> ModelOutcome:
        if done:
            raise KeyboardInterrupt
        done.append(job.name)
        return work(job)

    monkeypatch.setattr(workers, "work", interrupted)
    assert run("ci", "--update").code == 130
    assert {p.name for p in folder.rglob("*") if p.is_file()} == {
        "branches.onnx", "small.onnx", "onnxgrad.toml",
    }  # fmt: skip
    assert [p.name for p in (folder / "build").iterdir()] == ["branches.onnx"]


def test_the_schema_is_one(run: Run) -> None:
    schema = json.loads(run("ci", "--schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == json.loads(SCHEMA.read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"format": "onnxgrad ci"}, schema)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ('out = "../away"', "out: "),
        ('out = "{outside}"', "out: "),
        ('out = "link"', "out: "),
        ('lock = "../away.lock.json"', "lock: "),
    ],
)
def test_a_recipe_that_nobody_named_writes_below_its_folder(
    folder: Path, run: Run, key: str, words: str
) -> None:
    """It came with the folder, as models do."""
    inside, outside = folder / "inside", folder / "away"
    outside.mkdir()
    (folder / "models").rename(folder / "inside-models")
    inside.mkdir()
    (folder / "inside-models").rename(inside / "models")
    (inside / "link").symlink_to(outside)
    written = key.replace("{outside}", str(outside))
    (inside / "onnxgrad.toml").write_text(f'[ci]\nmodels = ["models/*.onnx"]\n{written}\n')
    os.chdir(inside)
    done = run("ci", "--update")
    assert done.code == 2 and words in done.err and "this recipe was not named" in done.err
    assert "onnxgrad ci onnxgrad.toml" in done.err and len(done.lines) == 1
    assert not list(outside.iterdir()) and not (folder / "away.lock.json").exists()
    assert run("ci", "onnxgrad.toml", "--update").code == 0
    assert list(outside.iterdir()) or (folder / "away.lock.json").exists()


@pytest.mark.slow
def test_changes_around_the_passes(folder: Path, run: Run) -> None:
    """Each is proved; a preparation lies beside its rest and goes with it; `input` is the file."""
    table = """
[models."*small.onnx"]
before = { rename = { w = "weight" } }
after = { rename = { y = "out" } }
lift = ["weight"]
require = { interface = "== input", nodes = "<= input" }
"""
    onnx.save(
        parse(SMALL.replace("b = MatMul(a, w)", "e = Neg(w) b = MatMul(a, e)")),
        folder / "models" / "small.onnx",
    )
    (folder / "onnxgrad.toml").write_text(RECIPE + table.replace('interface = "== input", ', ""))
    first = run("ci", "--update", "-v")
    assert first.code == 0 and "edited before the passes: equal on cpu" in first.out
    assert {p.name for p in (folder / "build").iterdir()} == {
        "branches.onnx", "small.onnx", "small.prepare.onnx",
    }  # fmt: skip
    rest = onnx.load(folder / "build" / "small.onnx").graph
    assert [v.name for v in rest.output] == ["out"] and [n.op_type for n in rest.node] == [
        "MatMul",
        "Relu",
    ]
    (small,) = [
        m for m in report(run("ci", "--all", "--json", "-"))["models"] if "small" in m["name"]
    ]
    assert small["status"] == "passed" and list(small["given"]["outputs"]) == ["y"]
    (folder / "onnxgrad.toml").write_text(RECIPE + table)
    refused = run("ci")
    assert refused.code == 1 and "required interface == input" in refused.out
    assert {p.name for p in (folder / "build").iterdir()} == {"branches.onnx"}
    (folder / "onnxgrad.toml").write_text(
        RECIPE.replace('"build/{name}.onnx"', '"models/built/{name}.onnx"').replace("*", "**/*")
        + table
    )
    again = run("ci")
    assert again.code == 2 and "a result, which would be a model in the next run" in again.err


@pytest.mark.slow
def test_latency_of_a_changed_model_is_that_of_its_passes(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").write_text(
        RECIPE
        + """
[models."*small.onnx"]
before = { rename = { x = "u" } }
after = { rename = { u = "v" } }
require = { latency = "<= 50", memory = "<= 2GB" }
[bench]
seconds = 0.05
rounds = 2
"""
    )
    done = run("ci", "--json", "-")
    (small,) = [m for m in report(done)["models"] if "small" in m["name"]]
    assert done.code == 0 and small["result"]["latency"]["against"] == "input"
    assert list(small["result"]["inputs"]) == ["v"]
