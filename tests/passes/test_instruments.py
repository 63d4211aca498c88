"""Passes left out, and programs printed between passes: from Python, from the command line, from a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.passes.instruments import PrintAfter, leave_out
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.passes.presets import PRESETS
from tests.cli.conftest import BRANCHES, Result, branches, run
from tests.helpers import parse

Run = Callable[..., Result]
__all__ = ["branches", "run"]


def names(pipeline: Pipeline) -> list[str]:
    return [p.name for p in pipeline.passes]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_pass_and_a_glob_are_left_out_wherever_they_stand(preset: str) -> None:
    whole = Pipeline.of(preset)
    left = leave_out(whole, ["fold-constant", "combine-*"])
    assert names(left) == [
        n for n in names(whole) if n != "fold-constant" and not n.startswith("combine-")
    ]
    assert names(leave_out(whole, [])) == names(whole)


def test_a_known_pass_that_does_not_run_may_be_left_out() -> None:
    assert names(leave_out(Pipeline.of("clean"), ["outline"])) == names(Pipeline.of("clean"))


def test_names_that_mean_nothing_are_mistakes() -> None:
    with pytest.raises(InputError, match="did you mean 'fold-constant'"):
        leave_out(Pipeline.of(), ["fold-constants"])
    with pytest.raises(InputError, match=r"did you mean 'combine\*'"):
        leave_out(Pipeline.of(), ["combine"])
    with pytest.raises(InputError, match="`onnxgrad passes` lists them"):
        leave_out(Pipeline.of(), ["qqqqqq"])
    with pytest.raises(InputError, match="no pass is left"):
        leave_out(Pipeline.of(passes="merge-equal"), ["merge-*"])
    with pytest.raises(InputError, match="this pipeline has no such pass"):
        PrintAfter.of(["outline"], Pipeline.of(), print)


def test_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    model = parse(BRANCHES)
    kept = onnxgrad.optimize(
        model, merge="always", without=["combine-*"], print_after=["remove-noops"]
    )
    assert [n.op_type for n in kept.graph.node].count("MatMul") == 3
    shown = capsys.readouterr().err
    assert shown.startswith("# after remove-noops\ng(x: f32[N,4]")
    assert "Identity" not in shown and shown.count("MatMul") == 3


def test_on_the_command_line(run: Run, branches: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    options = ["--merge", "always", "--without", "remove-noops", "--without", "merge-equal"]
    done = run("optimize", branches, "-o", out, *options, "--print-after", "combine-*")
    assert done.code == 0
    assert [n.op_type for n in onnx.load(out).graph.node].count("Identity") == 1
    assert done.err.count("# after combine-parallel-matmul") == 1 and "Split(" in done.err


def test_into_a_folder_one_numbered_file_a_change(run: Run, branches: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts" / "inner"
    done = run(
        "optimize", branches, "--dry-run", "--merge", "always", "--print-after", f"*={folder}"
    )
    assert (done.code, done.err) == (0, "")
    files = sorted(p.name for p in folder.iterdir())
    assert files[:2] == ["branches.001.remove-unused.txt", "branches.002.remove-noops.txt"]
    text = (folder / files[1]).read_text(encoding="utf-8")
    assert text.startswith("g(x: f32[N,4]") and text.endswith("}\n")


def test_what_changed_nothing_prints_nothing(run: Run, branches: Path) -> None:
    assert run("optimize", branches, "--dry-run", "--print-after", "open-if").err == ""


def test_a_failed_proof_prints_no_second_time(run: Run, branches: Path, tmp_path: Path) -> None:
    """The search for the rewrite to blame runs the passes again."""
    plugin = tmp_path / "wrong.py"
    plugin.write_text(
        "from onnxgrad import P, capture, op, rewrite\nx = capture('x')\n\n"
        "@rewrite(P.Tanh(x))\ndef wrong(x):\n    '''wrong'''\n    return op.Neg(x)\n",
        encoding="utf-8",
    )
    done = run("optimize", branches, "--dry-run", "--plugin", plugin, "--print-after", "wrong")
    assert done.code == 1 and done.err.count("# after wrong") == 1


def test_a_recipe_leaves_passes_out(run: Run, branches: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('merge = "always"\nwithout = ["combine-*"]\n', encoding="utf-8")
    out = tmp_path / "o.onnx"
    assert run("optimize", branches, "-o", out, "--config", recipe).code == 0
    assert [n.op_type for n in onnx.load(out).graph.node].count("MatMul") == 3
    recipe.write_text("without = [3]\n", encoding="utf-8")
    done = run("optimize", branches, "-o", out, "--config", recipe)
    assert done.code == 2 and "'without' must be text or a list, not [3]" in done.err


def test_control_characters_of_a_name_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Identity(x) y = Tanh(a) }")
    model.graph.node[1].output[0] = model.graph.output[0].name = "y\x1b[31m"
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    done = run("optimize", path, "--dry-run", "--no-verify", "--print-after", "remove-noops")
    assert "\x1b" not in done.err and "y\\x1b[31m" in done.err
