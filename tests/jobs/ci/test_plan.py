"""What will be done is settled, or refused, before any work is."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import pytest

from onnxgrad.errors import InputError
from onnxgrad.jobs.ci.lock import NewerLock, write
from onnxgrad.jobs.ci.plan import How, Plan, broken_links, meets, plan_of
from onnxgrad.jobs.recipe import parse
from tests.jobs.ci.test_lock import FACTS, lock_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with models, which nobody reads here."""
    for name in ("a.onnx", "sub/a.onnx", "sub/b.onnx", "sub/deep/c.onnx", "sub/notes.txt"):
        path = tmp_path / "recipes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "recipes"


def plan(folder: Path, table: dict[str, Any], recipe: str = "onnxgrad.toml", **how: Any) -> Plan:
    return plan_of(parse(table, str(folder / recipe)), How(**how))


def test_models_are_named_from_the_folder_of_the_recipe(folder: Path) -> None:
    models = ["**/*.onnx", "!build/**"]
    found = plan(folder, {"ci": {"models": models, "out": "build/{folder}/{name}.opt.onnx"}})
    names = ["a.onnx", "sub/a.onnx", "sub/b.onnx", "sub/deep/c.onnx"]
    assert [job.name for job in found.jobs] == names
    assert [job.path for job in found.jobs] == [str(folder / name) for name in names]
    assert [os.path.relpath(str(job.output), folder) for job in found.jobs] == [
        "build/a.opt.onnx", "build/sub/a.opt.onnx", "build/sub/b.opt.onnx", "build/sub/deep/c.opt.onnx",
    ]  # fmt: skip
    assert found.lock is None and found.lock_path == folder / "onnxgrad.lock.json"


def test_without_a_list_the_tables_name_the_models(folder: Path) -> None:
    found = plan(
        folder,
        {
            "require": {"nodes": 3},
            "models": {"sub/**/*.onnx": {"merge": "never"}, "*.onnx": {"require": {"MatMul": 1}}},
        },
    )
    options = {job.name: (job.options, job.gates) for job in found.jobs}
    assert list(options) == ["a.onnx", "sub/a.onnx", "sub/b.onnx", "sub/deep/c.onnx"]
    assert options["a.onnx"][1].require == {"nodes": 3, "MatMul": 1}
    # as everywhere a glob without a folder means the file's name too
    assert options["sub/b.onnx"][0].merge == "never" and "MatMul" in (
        options["sub/b.onnx"][1].require or {}
    )
    assert all(job.output is None for job in found.jobs)


def test_a_folder_of_results(folder: Path) -> None:
    for out in ("build", "build/"):
        (job,) = plan(folder, {"ci": {"models": ["a.onnx"], "out": out}}).jobs
        assert job.output == str(folder / "build" / "a.onnx")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, 'names no models: write models = ["models/*.onnx"] into [ci]'),
        ({"models": {"sub/x*.onnx": {}}}, "no file matches 'sub/x*.onnx'"),
        ({"ci": {"models": ["sub/bb.onnx"]}}, "there is no file 'sub/bb.onnx'"),
        ({"ci": {"models": ["sub/bb.onnx"]}}, "did you mean 'sub/b.onnx'?"),
        ({"ci": {"models": ["a.onnx"]}, "models": {"aa.onnx": {}}}, "did you mean 'a.onnx'?"),
        ({"ci": {"models": ["a.onnx"]}, "models": {"sub/*": {}}}, "matches none of the models"),
        (
            {"ci": {"models": ["**/*.onnx"], "out": "build/{name}.onnx"}},
            "names the same file for a.onnx and sub/a.onnx: write for example 'build/{folder}/{name}.onnx'",
        ),
        ({"ci": {"models": ["a.onnx"], "out": "{name}.onnx"}}, "would replace a.onnx"),
        ({"ci": {"models": ["a.onnx"], "out": "."}}, "would replace a.onnx"),
        (
            {"ci": {"models": ["*.onnx"], "out": "{name}.opt.onnx"}},
            "'*.onnx' also matches a.opt.onnx, a result, which would be a model in the next run: write "
            "it elsewhere, or '!a.opt.onnx' into the list of models",
        ),
        ({"models": {"**/*.onnx": {}}, "ci": {"out": "x/{folder}/{name}.onnx"}}, "or '!x/**' into"),
        ({"ci": {"models": ["*.onnx", "!*"]}}, "the globs with ! exclude all models"),
        ({"ci": {"models": ["sub"]}}, "'sub' is a folder: write for example 'sub/*.onnx'"),
        (
            {"ci": {"models": ["a.onnx"], "out": "b/{stem}.onnx"}},
            "unknown field '{stem}'; use {name}",
        ),
        ({"ci": {"models": ["a.onnx"], "out": "b/{0}.onnx"}}, "unknown field '{0}'; use {name}"),
        ({"ci": {"models": ["a.onnx"], "out": "b/{name.onnx"}}, "a brace has no partner"),
        (
            {"ci": {"models": ["a.onnx"], "out": "b/{name.upper}.onnx"}},
            "unknown field '{name.upper}'",
        ),
        ({"ci": {"models": ["a.onnx"], "out": "b/{name!q}.onnx"}}, "unknown field '{name!q}'"),
        ({"ci": {"models": ["a.onnx"], "out": "b/{name:d}.onnx"}}, "unknown field '{name:d}'"),
    ],
)
def test_what_is_refused(folder: Path, table: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as raised:
        plan(folder, table)
    assert words in str(raised.value) and str(folder / "onnxgrad.toml") in str(raised.value)


def test_a_model_that_was_not_fetched_is_not_passed_over(folder: Path) -> None:
    (folder / "annexed.onnx").symlink_to(".git/annex/objects/1")
    with pytest.raises(InputError, match=r"'annexed\.onnx' is a link to a file that is not there"):
        plan(folder, {"ci": {"models": ["*.onnx"]}})
    (job,) = plan(folder, {"ci": {"models": ["*.onnx", "!annexed.onnx"]}}).jobs
    assert job.name == "a.onnx"


def test_a_file_whose_name_looks_like_a_glob(folder: Path) -> None:
    (folder / "v[1].onnx").touch()
    (job,) = plan(folder, {"ci": {"models": ["v[1].onnx"]}}).jobs
    assert job.name == "v[1].onnx"


def test_the_lock_says_what_is_new_and_what_is_gone(folder: Path) -> None:
    lock = lock_of({"a.onnx": FACTS, "old.onnx": FACTS}, recipe="onnxgrad.toml")
    write(folder / "my.json", lock)
    found = plan(folder, {"ci": {"models": ["*a.onnx", "sub/b.onnx"], "lock": "my.json"}})
    assert found.gone == ("old.onnx",)
    assert [(job.locked, job.baseline) for job in found.jobs] == [(True, FACTS), (True, None)]


def test_a_damaged_lock_stops_all_but_an_update(folder: Path) -> None:
    table = {"ci": {"models": ["a.onnx"]}}
    (folder / "onnxgrad.lock.json").write_text("<<<<<<< ours")
    with pytest.raises(InputError, match="an unfinished merge"):
        plan(folder, table)
    assert plan(folder, table, updating=True).lock is None
    (folder / "onnxgrad.lock.json").write_text('{"format": "onnxgrad lock", "version": 9}')
    with pytest.raises(NewerLock):
        plan(folder, table, updating=True)


@pytest.mark.parametrize(
    ("recipe", "lock"),
    [
        ("onnxgrad.toml", "onnxgrad.lock.json"),
        ("pyproject.toml", "onnxgrad.lock.json"),
        ("mobile.toml", "mobile.lock.json"),
    ],
)
def test_each_recipe_has_a_lock(folder: Path, recipe: str, lock: str) -> None:
    assert plan(folder, {"ci": {"models": ["a.onnx"]}}, recipe).lock_path == folder / lock


def test_a_lock_of_another_recipe_is_refused(folder: Path) -> None:
    table = {"ci": {"models": ["a.onnx"], "lock": "shared.json"}}
    (folder / "mobile.toml").touch()
    write(folder / "shared.json", lock_of({"a.onnx": FACTS}, recipe="mobile.toml"))
    for updating in (False, True):
        with pytest.raises(
            InputError, match=r"is the lock of mobile\.toml; write another name into"
        ):
            plan(folder, table, updating=updating)
    (folder / "mobile.toml").unlink()
    with pytest.raises(
        InputError, match=r"mobile\.toml, which is gone: run `onnxgrad ci --update`"
    ):
        plan(folder, table)
    assert plan(folder, table, updating=True).lock is not None


def test_inputs_lie_beside_the_recipe(folder: Path) -> None:
    (folder / "x=1.npy").touch()
    table = {
        "verify": {"inputs": ["feeds.npz", "x=x.npy", "x=1.npy"]},
        "ci": {"models": ["a.onnx"]},
    }
    (job,) = plan(folder, table).jobs
    assert job.options.inputs == [
        str(folder / "feeds.npz"), f"x={folder / 'x.npy'}", str(folder / "x=1.npy")
    ]  # fmt: skip


_NAMES = (
    "a.onnx", ".a.onnx", "b[1].onnx", "sub/a.onnx", "sub/deep/c.onnx", "sub/.hidden/d.onnx", "sub/e",
)  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["*.onnx", "./*.onnx", "**/*.onnx", "**", "**/**", "sub/**", "sub/*/c.onnx", "**/deep/*", ".*",
     "*/?.onnx", "sub/.hidden/*", "[ab]*", "sub/../a.onnx", "a.onnx", "nothing"],
)  # fmt: skip
def test_as_glob_does(tmp_path: Path, pattern: str) -> None:
    for name in _NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = glob.glob(str(tmp_path / pattern), recursive=True)
    files = {Path(n).resolve().relative_to(tmp_path).as_posix() for n in found if Path(n).is_file()}
    assert {n for n in _NAMES if meets(pattern, n)} == files


def test_links_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    (tmp_path / "b.onnx").symlink_to("a.onnx")
    (tmp_path / "c.onnx").symlink_to("gone.onnx")
    assert broken_links("*.onnx", tmp_path) == ["c.onnx"]
