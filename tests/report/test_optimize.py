"""`optimize` in Python: every option of the command, the report with the model, and a recipe."""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.cli.arguments import add_options
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.functions import optimize
from onnxgrad.jobs.outcome import OptimizedModel
from tests.helpers import parse

TEXT = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
  { a = Identity(x)  b = MatMul(a, w)  c = Identity(b)  d = MatMul(c, w)  y = Relu(d) }"""
# what the command has for a shell's sake, or calls otherwise
OF_THE_SHELL = {
    "help",
    "output",
    "out_dir",
    "dry_run",
    "model",
    "tune_file",
    "custom_ops",
    "html",
    "no_config",
}
OTHERWISE = {
    "config": "recipe", "no_verify": "verify", "input": "inputs", "dim": "dims", "seed": "seeds",
    "check": "checks", "fix_dim": "fix_dims", "tune_time": "tune", "tune_from": "tune", "weights": "lift",
}  # fmt: skip


def test_every_option_of_the_command_is_one_in_python() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, COMMANDS["optimize"])
    said = {OTHERWISE.get(a.dest, a.dest) for a in parser._actions} - OF_THE_SHELL
    assert sorted(said - set(inspect.signature(optimize).parameters)) == []


def test_the_report_comes_with_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parse(TEXT), path)
    done = optimize(path, report=True)
    assert isinstance(done, OptimizedModel) and isinstance(done.model, onnx.ModelProto)
    assert [r.number for r in done.rewrites] == list(range(1, len(done.rewrites) + 1))
    assert {r.rule for r in done.rewrites} >= {"identity"}
    assert done.proof is not None and done.proof.ok and done.proof.compared["y"] > 0
    assert done.model == optimize(path)
    told = done.to_dict()
    assert main(["optimize", str(path), "--dry-run", "--json", "-"]) == 0
    (command,) = json.loads(capsys.readouterr().out)["models"]
    same = ("before", "after", "declined", "inexact")
    assert {k: told[k] for k in same} == {k: command[k] for k in same}
    assert [p["rewrites"] for p in told["passes"]] == [p["rewrites"] for p in command["passes"]]
    assert "equal on cpu" in str(done) and "dry run" not in str(done)
    assert "| MatMul" not in str(done) and "| nodes" in done.to_markdown()


def test_without_a_proof_there_is_none() -> None:
    done = optimize(parse(TEXT), verify=False, report=True)
    assert done.proof is None and "not proved (verify=False)" in str(done)
    each = optimize(parse(TEXT), verify="only each", report=True)
    assert each.proof is None and each.to_dict()["each"]["alone"] == len(each.rewrites)
    with pytest.raises(
        onnxgrad.InputError, match="verify must be true or false or one of each, only each, not"
    ):
        optimize(parse(TEXT), verify="all")  # type: ignore[arg-type]


def test_the_kind_that_was_given_comes_back() -> None:
    import onnx_graphsurgeon as gs

    assert isinstance(optimize(gs.import_onnx(parse(TEXT)), report=True).model, gs.Graph)


def test_options_of_the_proof_arrive() -> None:
    done = optimize(
        parse(TEXT), dims={"N": 3}, seeds=[7], checks=["onnxruntime"], threads=2, report=True
    )
    assert next((dict(c.dims), c.seed) for c in done.proof.cases) == ({"N": 3}, 7)
    assert list(done.proof.checks) == ["onnxruntime"]
    given = np.ones((5, 4), np.float32)
    fed = optimize(parse(TEXT), inputs={"x": given}, report=True)
    assert [(dict(c.dims), c.seed) for c in fed.proof.cases] == [({"N": 5}, None)]
    with pytest.raises(onnxgrad.InputError, match=r"dims=\{'M': 3\}: no input has"):
        optimize(parse(TEXT), dims={"M": 3})


def test_rewrites_stop_and_near_misses_are_kept() -> None:
    one = optimize(parse(TEXT), max_rewrites=1, explain=True, report=True)
    assert len(one.rewrites) == 1
    shared = parse(
        """g (float[2] x) => (float[2] y, float[2] z)
        { z = Identity (x)  y = Relu (z) }"""
    )
    missed = optimize(shared, explain=True, report=True).near_misses
    assert all(len(entry) == 3 for entry in missed)
    assert optimize(shared, report=True).near_misses == []


def test_a_recipe_says_what_is_not_said_here(tmp_path: Path) -> None:
    path, recipe = tmp_path / "m.onnx", tmp_path / "recipe.toml"
    onnx.save(parse(TEXT), path)
    recipe.write_text(
        'passes = "remove-noops"\n[verify]\nseeds = [5]\nrun = false\n'
        '[models."m.onnx"]\nrequire = { MatMul = "<=2" }\n'
    )
    done = optimize(path, recipe=recipe, report=True)
    assert done.proof is None
    assert [p["name"] for p in done.to_dict()["passes"]] == ["remove-noops"]
    proved = optimize(path, recipe=recipe, verify=True, preset="clean", report=True)
    assert next(c.seed for c in proved.proof.cases) == 5
    assert len(proved.to_dict()["passes"]) > 1
    recipe.write_text('require = { MatMul = "<2" }')
    with pytest.raises(onnxgrad.NotProved, match="2 MatMul, not < 2"):
        optimize(path, recipe=recipe)
    recipe.write_text('require = { MatMull = "<2" }')
    with pytest.raises(onnxgrad.InputError, match="did you mean 'MatMul'"):
        optimize(path, recipe=recipe)


def test_a_bound_on_time_holds() -> None:
    with pytest.raises(onnxgrad.NotProved, match="timeout="):
        optimize(parse(TEXT), timeout=1e-4)
