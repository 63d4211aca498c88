"""Every module of some size has tests that mirror it, or a home that HOMES names, with the reason.

The mirror of onnxgrad/a/b.py is tests/a/test_b.py. A folder may have one file for all of it, tests/a/test_folder.py
beside or inside tests/a/folder; a private module (_b.py) is tested through its folder's other modules; a module that a
test file of tests/a imports by name is tested there; a law is tested through its pass, and a report or a part of `ci`
through its command (SEEN_THROUGH). Homes are files that were seen to run the module.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.helpers import ROOT

PACKAGE, TESTS = ROOT / "onnxgrad", ROOT / "tests"
SIZE = 40  # lines of code above which a module wants a test file
# area -> where the tests of the passes and commands are that its modules exist for
SEEN_THROUGH = {"laws": ("passes",), "report": ("cli", "cli/commands"),
                "cli": ("report",), "jobs": ("cli", "cli/commands")}  # fmt: skip

# reason: module -> the test file that is its home
HOMES: dict[str, dict[str, str]] = {
    "seen through the command that has these options, reads this model, prints this report": {
        "jobs/groups": "jobs/test_declared",
        "cli/commands/train_step": "cli/commands/test_fit",
        "report/training": "cli/commands/test_fit",
        "cli/commands/open_batch": "jobs/test_open_batch",
        "cli/commands/surgery": "jobs/surgery/test_edit",
        "verify/running/process_limits": "cli/test_bad_input",
        "cli/models": "cli/test_bad_input",
        "ir/storage/places": "cli/test_targets",
        "report/proof": "cli/commands/test_verify",
        "report/forms": "report/test_inspection",
        "report/optimized": "report/test_optimize",
        "jobs/inspection/contents": "report/test_inspection",
        "jobs/inspection/differences": "report/test_diff",
    },
    "a step of what this file tests whole": {
        "transform/sizes/arithmetic": "transform/test_open_guesses",
        "transform/sizes/extensions": "transform/test_open_guesses",
        "transform/sizes/bodies": "transform/test_open_bodies",
        "transform/sizes/ones": "transform/test_open_ones",
        "transform/sizes/constants": "transform/test_open_sizes",
        "transform/sizes/positions": "transform/test_open_guesses",
        "transform/sizes/waves": "transform/test_open_guesses",
        "transform/sizes/expressions": "transform/test_open_sizes",
        "transform/sizes/node": "transform/test_open_sizes",
        "transform/sizes/origins": "transform/test_open_sizes",
        "transform/sizes/reshape": "transform/test_open_sizes",
        "transform/sizes/targets": "transform/test_open_sizes",
        "transform/sizes/walk": "transform/test_open_sizes",
        "grad/derivatives/derivative": "grad/derivatives/test_jacobian",
        "grad/checking/vectors": "grad/checking/test_check",
        "grad/paths": "grad/test_backward_walk",
        "plugins/function_attributes": "plugins/test_function_gradient",
        "grad/sequences": "grad/rules/test_sequences",
        "ir/reader": "ir/test_load",
        "verify/changed_region": "passes/test_each_rewrite",
        "verify/exact/decider": "verify/exact/test_decide",
    },
    "two of three ways to one answer, which that file compares": {
        "ir/type_inference/window_shapes": "ir/type_inference/test_shape_arithmetic",
    },
    "operators of one family, in one file": {
        "grad/rules/recurrent/lstm": "grad/rules/recurrent/test_rnn",
        "grad/rules/onnxruntime": "laws/bodies/test_table",
        "laws/bodies/calls": "laws/bodies/test_lowering",
        "laws/bodies/diffusion": "laws/bodies/test_table",
        "laws/bodies/quantized": "laws/bodies/test_table",
    },
    "what only a whole run of `onnxgrad ci` shows to work": {
    },
    "names in a file, and runs of originals, seen where files are joined": {
        "ir/renaming": "jobs/surgery/test_join",
        "surgery": "jobs/surgery/test_edit",
        "training": "jobs/training/test_fit",
        "jobs/row_declarations": "jobs/test_open_batch",
    },
    "what a run of a step needs, seen where it runs": {
    },
    "passes that are tables, laws and matchers, seen through the passes that apply them": {
        "passes/folded_values": "passes/test_fold_constant",
        "passes/outlined_functions": "passes/test_outline",
        "laws/merge_consecutive": "laws/test_clipping",
        "laws/sums": "grad/test_finish",
        "laws/shapes": "grad/test_finish",
        "laws/raise_opset": "passes/test_convert_opset_steps",
        "laws/lower_opset": "passes/test_convert_opset_steps",
        "laws/composites/attention_masks": "laws/composites/test_attention",
        "laws/composites/attention_chain": "laws/composites/test_attention",
        "laws/composites/conditions": "laws/composites/test_normalization",
        "laws/quantized/calls": "passes/test_legalize",
        "laws/quantized/islands": "passes/test_fake_quantization_to_integer",
        "laws/quantized/scaled": "passes/test_fake_quantization_to_integer",
        "laws/quantized/through": "passes/test_fake_quantization_to_integer",
    },
}  # fmt: skip


def code_lines(path: Path) -> int:
    """Lines that are neither empty nor comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(s := line.strip()) and not s.startswith("#") and i not in documented
        for i, line in lines
    )


def module(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


@functools.cache
def modules() -> list[str]:
    """Those of some size, by their paths without suffix."""
    files = {module(p): p for p in sorted(PACKAGE.rglob("*.py")) if p.stem != "__init__"}
    return [name for name, p in files.items() if code_lines(p) > SIZE]


def has_mirror(name: str, tests: Path = TESTS) -> bool:
    path = tests / name
    folder = path.parent
    own = [folder / f"test_{path.name.lstrip('_')}.py"]
    if folder != tests:
        own += [folder / f"test_{folder.name}.py", folder.parent / f"test_{folder.name}.py"]
    for other in SEEN_THROUGH.get(name.split("/")[0], ()):
        words = [path.name, f"{path.name}_{folder.name}", f"{folder.name}_{path.name}"]
        words += [folder.name] if folder.parent != tests else []
        own += [tests / other / f"test_{word}.py" for word in words]
    return (
        any(p.is_file() for p in own)
        or (path.name.startswith("_") and any(folder.glob("test_*.py")))
        or name in imported_in(tests / name.split("/")[0])
    )


@functools.cache
def imported_in(area: Path) -> set[str]:
    """Those that a test file below `area` imports, or imports names from, by their paths without suffix."""
    found: set[str] = set()
    for file in sorted(area.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.removeprefix("onnxgrad.").replace(".", "/") for name in found}


def test_every_module_has_its_tests() -> None:
    known = {name for homes in HOMES.values() for name in homes}
    assert {"ir/block", "cli/commands/optimize", "grad/rules/recurrent/rnn"} <= set(modules())
    assert [name for name in modules() if not has_mirror(name) and name not in known] == []


def test_every_exception_is_needed_and_its_home_is_there() -> None:
    large = set(modules())
    homes = [pair for group in HOMES.values() for pair in group.items()]
    assert len({name for name, _ in homes}) == len(homes)
    assert [name for name, _ in homes if name not in large or has_mirror(name)] == []
    assert [home for _, home in homes if not (TESTS / f"{home}.py").is_file()] == []


@pytest.mark.parametrize(
    ("name", "there", "answer"),
    [
        ("a/b", "a/test_b.py", True),
        ("a/b", "a/test_c.py", False),
        ("a/b", "test_b.py", False),
        ("a/folder/b", "a/test_folder.py", True),
        ("a/folder/b", "a/folder/test_folder.py", True),
        ("a/_b", "a/test_c.py", True),
        ("a/_b", "a/test_b.py", True),
        ("b", "test_b.py", True),
        ("b", "test_c.py", False),
        ("laws/b", "passes/test_b.py", True),
        ("laws/folder/b", "passes/test_b_folder.py", True),
        ("laws/folder/b", "passes/test_folder_b.py", True),
        ("laws/folder/b", "passes/test_folder.py", True),
        ("laws/b", "passes/test_c.py", False),
        ("a/b", "passes/test_b.py", False),
    ],
)
def test_the_finder_of_mirrors(tmp_path: Path, name: str, there: str, answer: bool) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()
    assert has_mirror(name, tmp_path) is answer


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("from onnxgrad.a.b import f", True),
        ("from onnxgrad.a import b", True),
        ("import onnxgrad.a.b", True),
        ("from onnxgrad.a import c", False),
        ("from onnxgrad import b", False),
        ("'onnxgrad.a.b'", False),
    ],
)
def test_the_finder_of_imports(tmp_path: Path, line: str, answer: bool) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "test_c.py").write_text(f"def f():\n    {line}\n", encoding="utf-8")
    assert has_mirror("a/b", tmp_path) is answer


def test_lines_of_code_are_counted_without_words(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        '"""Two\nlines."""\n\n# one\ndef f():\n    """Says."""\n    return "text"\n',
        encoding="utf-8",
    )
    assert code_lines(path) == 2
