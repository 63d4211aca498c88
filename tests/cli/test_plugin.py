"""`--plugin FILE.py`: rules, families, passes and gradient rules of one's own, on every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.usage import COMMANDS
from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]

TEXT = """g (float[2,4] x, float[4,4] v, float[4,4] w) => (float[2,4] y) {
    p = Softsign(x) q = MatMul(p, v) r = MatMul(p, w) y = Add(q, r) }"""
OWN = """
from dataclasses import dataclass
from onnxgrad import P, RulePass, capture, combine, op, register, rewrite

x, w = capture("x w")

@rewrite(P.Softsign(x))
def softsign(x):
    '''Softsign(x) = x / (1 + |x|)'''
    return x / (1.0 + op.Abs(x))

@combine(P.MatMul(x, w), by=lambda x: x)
def side_by_side(x, w):
    return op.Split(x[0] @ op.Concat(*w, axis=1), [4] * len(w), axis=1, outputs=len(w))

@rewrite(P.Add(x, w))
def swapped(x, w):
    return op.Sub(x, op.Neg(w))

@register
@dataclass(frozen=True)
class ByName(RulePass):
    '''a + b = a - (-b)'''
    name = "by-name"
    laws = [swapped]

del swapped  # for the pass only
"""


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path, Path]:
    model, plugin = tmp_path / "m.onnx", tmp_path / "my_laws.py"
    onnx.save(parse(TEXT), model)
    plugin.write_text(OWN)
    return model, plugin, tmp_path / "o.onnx"


def operators(path: Path) -> list[str]:
    return sorted(n.op_type for n in onnx.load(path).graph.node)


def test_rules_and_families_run_behind_the_preset(run: Run, given: tuple[Path, Path, Path]) -> None:
    model, plugin, out = given
    done = run("optimize", model, "-o", out, "--plugin", plugin, "--json", "-")
    assert done.code == 0
    assert operators(out) == ["Abs", "Add", "Add", "Concat", "Div", "MatMul", "Split"]
    (found,) = json.loads(done.out)["models"]
    (own,) = [p for p in found["passes"] if p["name"] == "my-laws"]
    assert (
        own["rules"] == {"softsign": 1, "side_by_side": 1} and found["proof"]["verdict"] == "equal"
    )


def test_a_pass_of_ones_own_is_called_by_its_name(run: Run, given: tuple[Path, Path, Path]) -> None:
    model, plugin, out = given
    assert (
        run("optimize", model, "-o", out, "--plugin", plugin, "--passes", "my-laws,by-name").code
        == 0
    )
    assert operators(out) == ["Abs", "Concat", "Div", "MatMul", "Neg", "Neg", "Split", "Sub", "Sub"]
    assert "by-name" in run("passes", "by-name", "--plugin", plugin).out
    assert run("optimize", model, "-o", out, "--passes", "no-such", "--plugin", plugin).code == 2


def test_a_wrong_rule_is_refuted_and_named(run: Run, given: tuple[Path, Path, Path]) -> None:
    model, plugin, out = given
    plugin.write_text(OWN.replace("x / (1.0", "x / (1.5"))
    done = run("optimize", model, "-o", out, "--plugin", plugin)
    assert done.code == 1 and not out.exists()
    assert "softsign (pass my-laws)" in done.lines[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_option(run: Run, command: str) -> None:
    assert "--plugin FILE.py" in run(command, "--help").out


def test_what_a_plugin_may_do_wrong(run: Run, given: tuple[Path, Path, Path]) -> None:
    model, plugin, out = given
    for text, words in (
        ("x = 1 / 0", "line 1: ZeroDivisionError"),
        ("def (", "SyntaxError"),
        ("import onnxgrad\nonnxgrad.zero('Relu')", "has a gradient rule already"),
        ("raise SystemExit(5)", "SystemExit"),
    ):
        plugin.write_text(text)
        done = run("optimize", model, "-o", out, "--plugin", plugin)
        assert done.code == 2 and words in done.lines[-1] and "--plugin" in done.lines[-1], text
    assert run("optimize", model, "-o", out, "--plugin", "nowhere.py").code == 2
    own = plugin.with_name("fold_bias.py")
    own.write_text(OWN)
    assert (
        "a pass already has this name"
        in run("optimize", model, "-o", out, "--plugin", own).lines[-1]
    )


def test_a_rule_that_fails_is_named_with_file_and_line(
    run: Run, given: tuple[Path, Path, Path]
) -> None:
    model, plugin, out = given
    plugin.write_text(
        "from onnxgrad import P, capture, op, rewrite\nx = capture('x')\n\n"
        "@rewrite(P.Softsign(x))\ndef bad(x):\n    return op.MatMul(x, op.Reshape(x, [5, 2]))\n"
    )
    done = run("optimize", model, "-o", out, "--plugin", plugin)
    assert done.code == 1 and not out.exists()
    assert f"rule bad failed at p: f32[2,4] = Softsign(x) ({plugin}, line 6)" in done.lines[-1]
    assert "emitted binding does not type" in done.lines[-1]
