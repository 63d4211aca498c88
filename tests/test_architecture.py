"""Imports point downwards only and in no circle, no new file is short, heavy packages are imported where they are needed."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from onnxgrad import extensions
from tests.helpers import ROOT

PACKAGE = ROOT / "onnxgrad"
# Lowest first. A name is a module or a folder of the package; `version`, `errors` and `limits` are below everything.
LAYERS = [
    "version",
    "startup",
    "interpreter",
    "vocabulary",
    "wording",
    "frozen",
    "errors",
    "extensions",
    "results",
    "options",
    "name_lists",
    "named_options",
    "limits",
    "ir",
    "verify",
    "rewrite",
    "laws",
    "batching",
    "passes",
    "grad",
    "transform",
    "train",
    "jobs",
    "testing",
    "report",
    "functions",
    "surgery",
    "training",
    "olive",
    "surface",
    "help",
    "cli",
    "plugins",
    "__init__",
    "__main__",
]
MIN_LINES = 40  # a shorter file belongs to its neighbour; `__init__` apart
# older files that are shorter; the list may only shrink
SHORT_FILES = frozenset({
    "__main__.py", "cli/commands/check_grad.py", "cli/commands/convert_opset.py",
    "cli/commands/diff.py", "cli/commands/inspect.py",
    "cli/commands/verify.py", "plugins/olive/package_config.py", "train/engines/choice.py",
    "version.py",
})  # fmt: skip
# imports of our own modules that wait until they are needed: (file, module), each with its reason beside it
LATE: frozenset[tuple[str, str]] = frozenset({
    ("cli/parser.py", "onnxgrad.cli.usage.COMMANDS"),  # options of other commands, for an error alone
    ("cli/parser.py", "onnxgrad.jobs.declared.options_of"),
    ("jobs/surgery/edit.py", "onnxgrad.train.losses.adding.with_loss"),
    ("jobs/surgery/edit.py", "onnxgrad.train.modes.Modes"),  # `optimize` imports no training
    # a child that runs onnxruntime is ready in 0.2 s, as it imports neither onnx nor the evaluator
    ("verify/running/child_main.py", "onnxgrad.verify.reference.server"),
    ("verify/running/child_main.py", "onnxgrad.verify.exact.child"),
    # declarations are read for `--help`, and blame runs models
    ("jobs/keywords.py", "onnxgrad.verify.blame.blamed"),
    # `optimize` neither tunes, nor changes the model around the passes, nor decides exactly
    ("jobs/optimize.py", "onnxgrad.jobs.around_passes.changed_after"),
    ("jobs/optimize.py", "onnxgrad.jobs.around_passes.changed_before"),
    ("jobs/optimize.py", "onnxgrad.jobs.surgery.fixed_dims.fixed"),
    ("jobs/optimize.py", "onnxgrad.jobs.tuning.record.Tuning"),
    ("jobs/optimize.py", "onnxgrad.rewrite.exact_record.RewriteNotExact"),
    ("jobs/rewriting.py", "onnxgrad.rewrite.exact_record.ExactProver"),
    ("cli/options.py", "onnxgrad.jobs.tuning.record.write"),
    ("cli/commands/optimize.py", "onnxgrad.jobs.surgery.lift.prepare_path"),
    # `optimize` neither converts, nor opens dimensions, nor writes a page, unless it is told to
    ("jobs/surgery/edit.py", "onnxgrad.grad.weights.kept.check_replaceable"),
    ("jobs/around_passes.py", "onnxgrad.jobs.float16.float16"),
    ("jobs/surgery/edit.py", "onnxgrad.train.modes.Modes"),
    ("jobs/surgery/edit.py", "onnxgrad.transform.inference_mode.described"),
    ("jobs/surgery/edit.py", "onnxgrad.transform.inference_mode.in_training_mode"),
    ("jobs/surgery/edit.py", "onnxgrad.transform.inference_mode.to_inference"),
    ("jobs/optimize.py", "onnxgrad.transform.inference_mode.in_training_mode"),
    ("jobs/rewriting.py", "onnxgrad.jobs.rebasing.recording.Recording"),
    ("jobs/optimize.py", "onnxgrad.jobs.rebasing.changes.Followed"),
    ("jobs/rebasing/weights.py", "onnxgrad.passes.convert_opset.convert"),
    ("jobs/rebasing/adapted.py", "onnxgrad.train.adapters.merge"),
    ("jobs/rebasing/adapted.py", "onnxgrad.train.adapters.read_adapters"),
    ("jobs/rebasing/adapted.py", "onnxgrad.train.adapters.read_peft"),
    ("cli/commands/rebase.py", "onnxgrad.jobs.surgery.lift.prepare_path"),
    ("jobs/optimize.py", "onnxgrad.jobs.float16.with_large"),
    ("jobs/around_passes.py", "onnxgrad.jobs.open_batch.open_batch"),
    ("jobs/around_passes.py", "onnxgrad.jobs.open_batch.open_sizes"),
    ("jobs/around_passes.py", "onnxgrad.jobs.surgery.preprocess.preprocess"),
    # `rebase --no-verify` takes less time than to import the proof
    ("jobs/rebasing/rebase.py", "onnxgrad.jobs.rebasing.proof.prove"),
    ("jobs/rebasing/values.py", "onnxgrad.verify.running.child_process.RunFailed"),
    ("jobs/rebasing/values.py", "onnxgrad.verify.running.session.run"),
    ("cli/commands/rebase.py", "onnxgrad.report.proof.proof_lines"),
    ("cli/commands/rebase.py", "onnxgrad.jobs.proving.require_runtime"),
    # adapters are merged if the new weights have some
    ("jobs/rebasing/weights.py", "onnxgrad.train.adapters.merge.merge"),
    # operators of com.microsoft that `--inline` names
    ("passes/inline.py", "onnxgrad.laws.bodies.table.BODIES"),
    ("cli/commands/optimize.py", "onnxgrad.report.html.optimized.optimized_page"),
})  # fmt: skip
# classes that refer to each other by nature: the only circle that imports under TYPE_CHECKING may close
CORE = [f"onnxgrad.ir.{name}" for name in ("binding", "block", "program", "var")]
HEAVY = {
    "onnxruntime",
    "torch",
    "onnx_ir",
}  # optional, and slow to import: only inside the functions that need them


# public names beside those of `surface`: training_step among them, whose options a job declares
SURFACES = {"train/__init__.py"}


def layer_of(path: Path, package: Path = PACKAGE) -> str:
    relative = path.relative_to(package)
    return "surface" if str(relative) in SURFACES else relative.parts[0].removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(path: Path, package: Path = PACKAGE) -> list[tuple[int, str]]:
    """Every import in the file, at any depth, as (line, absolute dotted name)."""
    module = [
        "onnxgrad",
        *path.relative_to(package).with_suffix("").parts,
    ]  # one dot drops the last part
    found: list[tuple[int, str]] = []
    for node in ast.walk(parsed(path)):
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
    for line, name in imported_modules(path, package):
        target = layer_of_import(name)
        if target is not None and LAYERS.index(target) > LAYERS.index(own):
            arrows.append(f"{path.relative_to(package)}:{line} ({own}) imports {name} ({target})")
    return arrows


def imports_that_run(path: Path, *, late: bool = False) -> list[str]:
    """The imports that run with the module itself, or only `late`, inside its functions; none under TYPE_CHECKING."""
    return [name for name, inside in imports_and_where(path) if inside is late]


@functools.cache
def imports_and_where(path: Path) -> list[tuple[str, bool]]:
    """Every import that runs, and whether it stands inside a function."""
    found: list[tuple[str, bool]] = []
    todo: list[tuple[ast.AST, bool]] = [(parsed(path), False)]
    while todo:
        node, inside = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += [(n, inside) for n in node.orelse]
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found += [(f"{node.module}.{alias.name}", inside) for alias in node.names]
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        todo += [(n, inside) for n in ast.iter_child_nodes(node)]
    return found


def heavy_at_module_level(path: Path) -> list[str]:
    return [
        f"{path.name}: imports {name}"
        for name in imports_that_run(path)
        if name.split(".")[0] in HEAVY
    ]


def circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules each of which imports the next, and the last the first; none where there is no such circle."""
    done: set[str] = set()
    for root in edges:
        path: list[tuple[str, Iterator[str]]] = [(root, iter(edges[root]))]
        while path:
            module, imported = path[-1]
            needed = next((n for n in imported if n in edges and n not in done), None)
            if needed is None:
                done.add(module)
                path.pop()
            elif needed in (names := [name for name, _ in path]):
                return names[names.index(needed) :]
            else:
                path.append((needed, iter(edges[needed])))
    return []


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Every set of modules that reach each other (Tarjan's strongly connected components), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        open_.append(module)
        for needed in edges[module]:
            if needed in edges and needed not in index:
                visit(needed)
            if needed in open_:
                low[module] = min(low[module], low[needed])
        if low[module] == index[module]:
            at = open_.index(module)
            component = sorted(open_[at:])
            del open_[at:]
            if len(component) > 1:
                found.append(component)

    for module in edges:
        if module not in index:
            visit(module)
    return sorted(found)


def module_of(path: Path) -> str:
    return ".".join(["onnxgrad", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    )


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_file_belongs_to_a_layer() -> None:
    assert [str(f.relative_to(PACKAGE)) for f in files() if layer_of(f) not in LAYERS] == []


def test_no_upward_arrow() -> None:
    assert [arrow for f in files() if layer_of(f) in LAYERS for arrow in upward_arrows(f)] == []


def test_no_new_file_is_short() -> None:
    short = {
        str(f.relative_to(PACKAGE))
        for f in files()
        if f.name != "__init__.py" and len(f.read_text("utf-8").splitlines()) < MIN_LINES
    }
    assert short - SHORT_FILES == set(), "put it into the file of its subject"
    assert SHORT_FILES - short == set(), "no longer an exception"


def test_no_circle() -> None:
    modules = {module_of(f): f for f in files()}

    def home(name: str) -> str:  # of `package.module` or of `package.module.name`
        return name if name in modules else name.rpartition(".")[0]

    both = {
        m: [home(n) for n in imports_that_run(f) + imports_that_run(f, late=True)]
        for m, f in modules.items()
    }
    assert circle({m: [n for n in imported if n != m] for m, imported in both.items()}) == []


def test_no_circle_of_types_either() -> None:
    modules = {module_of(f): f for f in files()}
    edges = {
        m: [n if n in modules else n.rpartition(".")[0] for _, n in imported_modules(f)]
        for m, f in modules.items()
    }
    assert circles({m: [n for n in imported if n != m] for m, imported in edges.items()}) == [CORE]


def test_our_own_modules_are_imported_at_the_top() -> None:
    late = {
        (str(f.relative_to(PACKAGE)), name)
        for f in files()
        for name in imports_that_run(f, late=True)
        if name.split(".")[0] == "onnxgrad"
    }
    assert late == LATE


def reaches_for_plugins(path: Path, package: Path = PACKAGE) -> list[str]:
    """Imports of the folder of plug-ins from outside, also those for types, and names of its modules in texts."""
    if path.relative_to(package).parts[0] == "plugins":
        return []
    names = [name for _, name in imported_modules(path, package)]
    names += [
        node.value
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [name for name in names if re.match(r"onnxgrad\.plugins\b", name)]


def test_nothing_imports_a_plugin() -> None:
    """Plug-ins are found by name, through `extensions`, as those of users are."""
    assert [(str(f.relative_to(PACKAGE)), n) for f in files() for n in reaches_for_plugins(f)] == []


def test_every_entry_point_of_ours_is_there() -> None:
    entries = [
        (group, name, place)
        for group, points in extensions._table().items()
        for name, place in points.items()
    ]
    assert [name for _, name, place in entries if not place.startswith("onnxgrad.plugins.")] == []
    assert all(
        extensions.plugged(group.removeprefix("onnxgrad."), name) for group, name, _ in entries
    )


@pytest.mark.parametrize(
    ("where", "line", "found"),
    [
        ("jobs/a.py", "from onnxgrad.plugins import place", True),
        ("jobs/a.py", "def f():\n    import onnxgrad.plugins.place", True),
        ("jobs/a.py", "from onnxgrad import plugins", True),
        ("__init__.py", "from .plugins.place import place", True),
        ("cli/a.py", "import_module('onnxgrad.plugins.place')", True),
        ("cli/a.py", "if TYPE_CHECKING:\n    from onnxgrad.plugins.place import place", True),
        ("plugins/a.py", "from onnxgrad.plugins.place import place", False),
        ("cli/a.py", "'those of onnxgrad.plugins are found by name'", False),
        ("cli/a.py", "from onnxgrad.extensions import plugged", False),
    ],
)
def test_the_finder_of_plugins(tmp_path: Path, where: str, line: str, found: bool) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line, encoding="utf-8")
    assert bool(reaches_for_plugins(path, tmp_path)) is found


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
        ("cli/commands/optimize.py", "from ..version import __version__", False),
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


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"a": ["b"], "b": ["c", "d"], "c": ["d"], "d": ["e"]}, []),
        ({"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []}, ["b", "c"]),
    ],
)
def test_the_circle_finder(edges: dict[str, list[str]], found: list[str]) -> None:
    assert circle(edges) == found
    assert circles(edges) == [sorted(c) for c in [found] if c]


def test_the_finder_of_late_imports(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    text = """
        import a
        if TYPE_CHECKING:
            import b
        else:
            import c
        class C:
            import d
            def f(self):
                if True:
                    from e import f
        """
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    assert (sorted(imports_that_run(path)), imports_that_run(path, late=True)) == (
        ["a", "c", "d"],
        ["e.f"],
    )
