"""`pytest --near`: the tests of what git calls changed, and of what imports it."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

from scripts.mutation.near import near_tests
from tests.test_mirror import HOMES

ALWAYS = ("tests/test_architecture.py", "tests/test_mirror.py")
DOCUMENTS = ("tests/test_documents.py", "tests/test_pages.py", "tests/test_site.py")


def changed(root: Path) -> list[str]:
    """Returns the files that differ from where the branch left main, from HEAD if there is no main,
    with those that git does not know yet.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
        return done.stdout.splitlines()

    base = [*git("merge-base", "main", "HEAD"), "HEAD"][0]
    found = {
        *git("diff", "--name-only", "--relative", base),
        *git("ls-files", "--others", "--exclude-standard"),
    }
    return sorted(found)


def selected(root: Path, files: list[str]) -> set[str]:
    """Returns the test files, or folders of tests, that changed files ask for."""
    found: set[str] = set()
    for file in map(PurePosixPath, files):
        if file.parts[0] == "tests":
            found.add(str(file))
        elif file.parts[0] == "onnxgrad" and file.suffix == ".py":
            found.update(*near_tests(root, str(file)))
            name = str(PurePosixPath(*file.parts[1:]).with_suffix(""))
            found |= {f"tests/{homes[name]}.py" for homes in HOMES.values() if name in homes}
        elif file.suffix == ".md" or file.parts[0] == "models":
            found |= set(DOCUMENTS)
        elif file.parts[0] == "onnxgrad":  # a script or style of the page, a schema
            found.add(_tests_of_folder(root, file.parent))
        elif file.parts[0] == "scripts":
            found |= set(_readers(root, file))
    return (found | set(ALWAYS)) if found else found


def _tests_of_folder(root: Path, folder: PurePosixPath) -> str:
    tests = PurePosixPath("tests", *folder.parts[1:])
    while not (root / tests).is_dir():
        tests = tests.parent
    return str(tests)


def _readers(root: Path, script: PurePosixPath) -> list[str]:
    """The tests that name a script."""
    module = str(script.with_suffix("")).replace("/", ".")
    names = (str(script), script.name, f"{module} ", f"import {script.stem}")
    return [
        test.relative_to(root).as_posix()
        for test in sorted((root / "tests").rglob("test_*.py"))
        if any(name in test.read_text(encoding="utf-8") for name in names)
    ]


def is_left_out(path: Path, root: Path, wanted: set[str]) -> bool:
    """Whether `pytest --near` leaves a test file out."""
    if not path.name.startswith("test_") or path.suffix != ".py":
        return False
    file = PurePosixPath(path.relative_to(root).as_posix())
    return not any(str(part) in wanted for part in (file, *file.parents))
