"""Imports point downwards only, files stay short, heavy packages are imported where they are needed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers import ROOT

PACKAGE = ROOT / "onnxgrad"
# Lowest first. A name is a module or a folder of the package; `version`, `errors` and `limits` are below everything.
LAYERS = [
    "version",
    "startup",
    "errors",
    "limits",
    "ir",
    "verify",
    "rewrite",
    "placement",
    "folding",
    "outlining",
    "laws",
    "passes",
    "pipeline",
    "grad",
    "train",
    "report",
    "cli",
    "__init__",
    "__main__",
]
MAX_LINES = 400
LONG_FILES: frozenset[str] = frozenset()  # exceptions to MAX_LINES, each with its reason beside it
HEAVY = {"onnxruntime", "torch", "onnx_ir"}  # optional, and slow to import: only inside the functions that need them


def layer_of(path: Path, package: Path = PACKAGE) -> str:
    first = path.relative_to(package).parts[0]
    return first.removesuffix(".py")


def imported_modules(tree: ast.AST, path: Path, package: Path = PACKAGE) -> list[tuple[int, str]]:
    """Every import in the file, at any depth, as (line, absolute dotted name)."""
    module = ["onnxgrad", *path.relative_to(package).with_suffix("").parts]  # one dot drops the last part
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module[: -node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{stem}.{alias.name}") for alias in node.names]
    return found


def layer_of_import(name: str) -> str | None:
    """Layer that `onnxgrad.x.y` belongs to; None for other packages. `from onnxgrad import optimize` is the top."""
    parts = name.split(".")
    if parts[0] != "onnxgrad":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"


def upward_arrows(path: Path, package: Path = PACKAGE) -> list[str]:
    own = layer_of(path, package)
    arrows = []
    for line, name in imported_modules(ast.parse(path.read_text(encoding="utf-8")), path, package):
        target = layer_of_import(name)
        if target is not None and LAYERS.index(target) > LAYERS.index(own):
            arrows.append(f"{path.relative_to(package)}:{line} ({own}) imports {name} ({target})")
    return arrows


def heavy_at_module_level(path: Path) -> list[str]:
    """Imports of HEAVY packages that run when the module is imported (those under TYPE_CHECKING do not)."""
    found: list[str] = []
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        found += [f"{path.name}: imports {name}" for name in names if name.split(".")[0] in HEAVY]
        todo += ast.iter_child_nodes(node)
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_file_belongs_to_a_layer() -> None:
    assert [str(f.relative_to(PACKAGE)) for f in files() if layer_of(f) not in LAYERS] == []


def test_no_upward_arrow() -> None:
    assert [arrow for f in files() if layer_of(f) in LAYERS for arrow in upward_arrows(f)] == []


def test_files_are_short() -> None:
    lengths = {str(f.relative_to(PACKAGE)): len(f.read_text(encoding="utf-8").splitlines()) for f in files()}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES and name not in LONG_FILES} == {}
    assert [name for name in LONG_FILES if lengths.get(name, 0) <= MAX_LINES] == [], "no longer an exception"


def test_no_heavy_import_at_module_level() -> None:
    assert [found for f in files() for found in heavy_at_module_level(f)] == []


@pytest.mark.parametrize(
    ("where", "line", "bad"),
    [
        ("ir/block.py", "from onnxgrad.passes import pipeline", True),
        ("ir/block.py", "from ..verify.run import run", True),
        ("ir/block.py", "from .. import optimize", True),
        ("ir/block.py", "import onnxgrad", True),
        ("ir/block.py", "def f():\n    from ..grad import engine", True),
        ("ir/__init__.py", "from . import block", False),
        ("ir/__init__.py", "from .block import Var\nfrom ..errors import InputError", False),
        ("grad/rules/math.py", "from ...ir import block\nfrom ..engine import vjp", False),
        ("grad/rules/math.py", "from ...train import losses", True),
        ("errors.py", "from .ir import block", True),
        ("cli/optimize.py", "from ..version import __version__", False),
        ("__init__.py", "from .cli import main", False),
    ],
)
def test_the_arrow_finder(tmp_path: Path, where: str, line: str, bad: bool) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line, encoding="utf-8")
    assert bool(upward_arrows(path, tmp_path)) is bad


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("import onnxruntime as ort", True),
        ("try:\n    from onnxruntime.capi import x\nexcept ImportError:\n    x = None", True),
        ("class A:\n    import torch", True),
        ("def f():\n    import onnxruntime", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", False),
    ],
)
def test_the_heavy_import_finder(tmp_path: Path, text: str, bad: bool) -> None:
    path = tmp_path / "m.py"
    path.write_text(text, encoding="utf-8")
    assert bool(heavy_at_module_level(path)) is bad
