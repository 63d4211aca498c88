"""Chooses the test files that a change of a module should fail: its mirror, its importers' tests.

`scripts/mutants.py` runs them for each mutant, and `pytest --near` for the files that git calls
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.mutation.sites import Site

_NEAR = 12  # test files of the modules that import a changed one


class Near:
    """Plans tests by the names of files: the mirrors of the changed file, then the tests of its
    importers, then the rest.
    """

    def __init__(self, rest: bool, mirrors: bool = False) -> None:
        self.rest, self.mirrors = rest, mirrors

    def __call__(self, tree: Path, site: Site) -> list[Sequence[str]]:
        """Returns the test files in batches, the likeliest first, none twice."""
        mirrors, near = near_tests(tree, site.path)
        if mirrors and self.mirrors:
            return [mirrors]
        rest = _every(tree) if self.rest else []
        parts: list[Sequence[str]] = []
        seen: set[str] = set()
        for part in (mirrors, near, rest):
            parts.append([t for t in dict.fromkeys(part) if t not in seen])
            seen.update(part)
        return [part for part in parts if part]


def near_tests(tree: Path, path: str) -> tuple[list[str], list[str]]:
    """Returns the test files that mirror a module of `tree`, and up to 12 of its importers."""
    mirrors = _mirrors(tree, path)
    module = path.removesuffix(".py").replace("/", ".")
    near = _mirrors_of_readers(tree, module)
    stem = module.rpartition(".")[2].lstrip("_")
    for test in _every(tree):
        file = tree / test
        if f"{module} " in file.read_text(encoding="utf-8") or stem in file.stem:
            near.append(test)
    if not mirrors:  # its neighbours' tests
        folder = Path("tests", *Path(path).parts[1:-1])
        near += [test for test in _every(tree) if Path(test).parent == folder]
    return mirrors, [test for test in dict.fromkeys(near) if test not in mirrors][:_NEAR]


def _every(tree: Path) -> list[str]:
    """Returns every test file, the smallest first."""
    found = sorted((tree / "tests").rglob("test_*.py"), key=lambda p: (p.stat().st_size, p))
    return [p.relative_to(tree).as_posix() for p in found]


def _mirrors_of_readers(tree: Path, module: str) -> list[str]:
    """Returns the tests of a module's importers; if one has none, the tests of its importers."""
    sources = {
        ".".join(p.relative_to(tree).with_suffix("").parts): p.read_text(encoding="utf-8")
        for p in sorted((tree / "onnxgrad").rglob("*.py"))
    }
    level, seen = [module], {module}
    while level:
        names = [
            n for m in level for n in (f"{m} import", "from {} import {}".format(*m.rsplit(".", 1)))
        ]
        level = [
            m for m, text in sources.items() if m not in seen and any(n in text for n in names)
        ]
        seen.update(level)
        found = [mirror for m in level for mirror in _mirrors(tree, f"{m.replace('.', '/')}.py")]
        if found:
            return found
    return []


def _mirrors(tree: Path, path: str) -> list[str]:
    """Returns tests/a/test_b*.py for onnxgrad/a/b.py, or the only test file of the folder."""
    parts = Path(path).with_suffix("").parts[1:]
    folder, stem = tree.joinpath("tests", *parts[:-1]), parts[-1].strip("_")
    found = sorted(folder.glob(f"test_{stem}.py")) or sorted(folder.glob(f"test_{stem}_*.py"))
    if not found and len(parts) > 1:
        found = sorted(folder.parent.glob(f"test_{parts[-2]}*.py"))
    return [str(p.relative_to(tree)) for p in found]
