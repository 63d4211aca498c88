"""`pytest --near` runs the tests of what changed and of what imports it, and no others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.mutation.near import Near
from scripts.mutation.sites import sites
from tests.near import ALWAYS, DOCUMENTS, changed, is_left_out, selected

TREE = {
    "onnxgrad/__init__.py": "",
    "onnxgrad/a/__init__.py": "",
    "onnxgrad/a/b.py": "def f(x):\n    return x + 1\n",
    "onnxgrad/c.py": "from onnxgrad.a.b import f\n",
    "onnxgrad/d.py": "",
    "onnxgrad/a/assets/page.js": "",
    "scripts/draw.py": "",
    "tests/a/test_b.py": "",
    "tests/test_c.py": "",
    "tests/test_d.py": "",
    "tests/test_draw.py": "from scripts import draw\nimport draw",
    "README.md": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository on its branch main."""
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=tree, check=True)


def commit(tree: Path) -> None:
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")


def test_what_git_calls_changed(tree: Path) -> None:
    assert changed(tree) == []
    (tree / "onnxgrad/d.py").write_text("x = 1")
    (tree / "new.md").write_text("")
    assert changed(tree) == ["new.md", "onnxgrad/d.py"]  # on main: against HEAD
    git(tree, "switch", "-qc", "branch")
    commit(tree)
    (tree / "README.md").write_text("more")
    assert changed(tree) == ["README.md", "new.md", "onnxgrad/d.py"]  # else against main


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("onnxgrad/a/b.py", {"tests/a/test_b.py", "tests/test_c.py"}),
        ("onnxgrad/d.py", {"tests/test_d.py"}),
        ("tests/test_d.py", {"tests/test_d.py"}),
        ("scripts/draw.py", {"tests/test_draw.py"}),
        ("README.md", set(DOCUMENTS)),
        ("onnxgrad/a/assets/page.js", {"tests/a"}),
    ],
)
def test_which_tests_a_file_asks_for(tree: Path, file: str, tests: set[str]) -> None:
    found = selected(tree, [file]) - set(ALWAYS)
    assert tests <= found and "tests/test_d.py" not in found - tests


def test_nothing_changed_runs_nothing(tree: Path) -> None:
    assert selected(tree, []) == set()
    assert is_left_out(tree / "tests/test_d.py", tree, set())


def test_files_and_folders_that_stay(tree: Path) -> None:
    wanted = {"tests/a", "tests/test_c.py"}
    left = {name for name in TREE if is_left_out(tree / name, tree, wanted)}
    assert left == {"tests/test_d.py", "tests/test_draw.py"}


def test_a_mutant_has_the_same_tests(tree: Path) -> None:
    (site, *_) = sites(TREE["onnxgrad/a/b.py"], "onnxgrad/a/b.py")
    mirrors, near = Near(rest=False)(tree, site)
    assert {*mirrors, *near} == selected(tree, ["onnxgrad/a/b.py"]) - set(ALWAYS)
    assert mirrors == ["tests/a/test_b.py"]
