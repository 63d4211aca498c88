"""Every module of some size has a test file that mirrors it, or a home that HOMES names, with the reason.

The mirror of onnxgrad/a/b.py is tests/a/test_b.py. A folder may have one file for all of it, tests/a/test_folder.py
beside or inside tests/a/folder; a private module (_b.py) is tested through its folder's other modules. Homes are files that were seen to run the module.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.helpers import ROOT

PACKAGE, TESTS = ROOT / "onnxgrad", ROOT / "tests"
SIZE = 40  # lines of code above which a module wants a test file

# reason: module -> the test file that is its home
HOMES: dict[str, dict[str, str]] = {
    "seen through the command that has these options, reads this model, prints this report": {
        "cli/check_grad": "cli/test_grad",
        "cli/train_step": "cli/test_fit",
        "report/float16": "cli/test_float16", "report/metadata": "cli/test_metadata",
        "report/training": "cli/test_fit",
        "jobs/training_declarations": "cli/test_fit",
        "cli/extract": "report/test_extract",
        "verify/running/process_limits": "cli/test_bad_input",
        "cli/models": "cli/test_bad_input",
        "report/optimized": "cli/test_optimize", "report/proof": "cli/test_verify",
    },
    "a step of what this file tests whole": {
        "grad/differentiation": "grad/test_backward_walk", "grad/derivatives/derivative": "grad/derivatives/test_jacobian",
        "grad/checking/differences": "grad/checking/test_check", "grad/checking/probe": "grad/checking/test_check",
        "grad/checking/vectors": "grad/checking/test_check",
        "grad/checking/report": "grad/checking/test_check", "grad/prepare": "grad/test_backward_walk",
        "grad/paths": "grad/test_backward_walk",
        "grad/sequences": "grad/rules/test_sequences",
        "ir/function_bodies": "grad/test_opening", "ir/reader": "ir/test_load",
        "ir/storage/external_data": "ir/test_save",
        "report/html/plots": "report/html/test_optimized",
        "verify/feeds/data_flow": "verify/feeds/test_generate",
        "verify/changed_region": "passes/test_each_rewrite",
    },
    "what every test of blocks and of emission goes through": {
        "ir/attributes": "ir/test_emission", "ir/binding": "ir/test_block", "ir/var": "ir/test_block",
    },
    "two of three ways to one answer, which that file compares": {
        "ir/type_inference/closed_forms": "ir/type_inference/test_per_binding",
        "ir/type_inference/symbolic_shapes": "ir/type_inference/test_per_binding",
    },
    "operators of one family, in one file": {
        "grad/rules/recurrent/lstm": "grad/rules/recurrent/test_rnn",
    },
    "what only a whole run of `onnxgrad ci` shows to work": {
        "jobs/declarations": "jobs/test_declared", "jobs/groups": "jobs/test_declared",
        "jobs/outcome": "jobs/test_optimize", "jobs/ci/measure": "cli/test_ci", "jobs/ci/outcome": "cli/test_ci", "jobs/ci/work": "cli/test_ci",
    },
    "parts of one proof, which only a whole one shows to work": {
        "verify/trials": "verify/test_proof",
        "verify/onnxruntime_check": "verify/test_proof",
        "verify/report": "verify/test_proof", "verify/proof_model": "verify/test_proof",
    },
    "what a run of a step needs, seen where it runs": {
        "train/divergence": "train/test_trainer", "train/engines/base": "train/engines/test_graph",
        "train/engines/session": "train/test_trainer",
    },
    "steps of one search for a smaller model": {
        "verify/reducing/candidates": "verify/reducing/test_reduce"
    },
    "the two sides of one pipe": {
        "verify/reference/onnx_reference_kernels": "verify/reference/test_evaluate", "verify/reference/client": "verify/test_proof",
        "verify/reference/server": "verify/reference/test_user_operators",
        "verify/running/child_main": "verify/running/test_session", "verify/running/child_process": "verify/running/test_session",
    },
    "passes that are tables, laws and matchers, seen through the passes that apply them": {
        "passes/rule_passes": "passes/test_remove_noops",
        "passes/base": "passes/test_user_laws",
        "passes/folding": "passes/test_fold_constant",
        "passes/outlined_functions": "passes/test_outline",
        "rewrite/pattern": "rewrite/test_match",
        "laws/simplify_inference": "passes/test_simplify_inference",
        "laws/fold_bias": "passes/test_fold_bias",
        "laws/remove_noops": "passes/test_remove_noops",
        "laws/merge_consecutive": "laws/test_clipping",
        "laws/sums": "grad/test_finish",
        "laws/shapes": "grad/test_finish",
        "laws/raise_opset": "passes/test_convert_opset_steps",
        "laws/lower_opset": "passes/test_convert_opset_steps",
        "laws/composites/attention_masks": "laws/composites/test_attention",
        "laws/composites/attention_chain": "laws/composites/test_attention",
        "laws/composites/conditions": "laws/composites/test_normalization",
        "laws/combine_parallel/conv": "passes/test_combine_parallel_conv",
        "laws/combine_parallel/dense": "passes/test_combine_parallel_dense",
        "laws/combine_parallel/gemm": "passes/test_combine_parallel_gemm",
        "laws/combine_parallel/matmul": "passes/test_combine_parallel_matmul",
        "laws/quantized/legalize": "passes/test_legalize",
        "laws/quantized/islands": "passes/test_fake_quantization_to_integer",
        "laws/quantized/scaled": "passes/test_fake_quantization_to_integer",
        "laws/quantized/through": "passes/test_fake_quantization_to_integer",
        "laws/fold_scale_axis/backward": "passes/test_backward_fold_scale_axis",
        "laws/fold_scale_axis/forward": "passes/test_forward_fold_scale_axis",
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
    return any(p.is_file() for p in own) or (
        path.name.startswith("_") and any(folder.glob("test_*.py"))
    )


def test_every_module_has_its_tests() -> None:
    known = {name for homes in HOMES.values() for name in homes}
    assert len(modules()) > 200
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
    ],
)
def test_the_finder_of_mirrors(tmp_path: Path, name: str, there: str, answer: bool) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()
    assert has_mirror(name, tmp_path) is answer


def test_lines_of_code_are_counted_without_words(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        '"""Two\nlines."""\n\n# one\ndef f():\n    """Says."""\n    return "text"\n',
        encoding="utf-8",
    )
    assert code_lines(path) == 2
