from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.verify import verify
from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]


def scaled(path: Path, factor: float) -> Path:
    """The model with its weight `a` multiplied."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "a":
            tensor.CopyFrom(
                numpy_helper.from_array(
                    (numpy_helper.to_array(tensor) * factor).astype(np.float32), "a"
                )
            )
    out = path.with_name(f"scaled{factor}.onnx")
    onnx.save(model, out)
    return out


def test_equal(run: Run, branches: Path) -> None:
    done = run("verify", branches, branches)
    assert (
        (done.code, done.err) == (0, "")
        and "equal on cpu" in done.out
        and "bit-identical" in done.out
    )


def test_different(run: Run, branches: Path) -> None:
    done = run("verify", branches, scaled(branches, 0.5), "--json", branches.with_suffix(".json"))
    assert (done.code, done.err) == (1, "") and "different on cpu" in done.out and "y[" in done.out
    assert json.loads(branches.with_suffix(".json").read_text())["ok"] is False


def test_other_interface(run: Run, branches: Path) -> None:
    model = onnx.load(branches)
    del model.graph.output[1]
    other = branches.with_name("other.onnx")
    onnx.save(model, other)
    done = run("verify", branches, other)
    assert done.code == 1 and "'z' is missing" in done.out


@pytest.mark.parametrize(("weights", "code"), [("auto", 0), ("rounded", 0), ("same", 1)])
def test_weights_computed_anew(run: Run, branches: Path, weights: str, code: int) -> None:
    # 1e-7 relative is what rounding a weight costs: too much for 1e-9, little enough for 1e-6
    assert run("verify", branches, scaled(branches, 1 + 1.2e-7), "--weights", weights).code == code


def test_no_advice_of_another_command(run: Run, branches: Path) -> None:
    model = onnx.load(branches)
    model.ir_version = 14
    new = branches.with_name("new.onnx")
    onnx.save(model, new)
    done = run("verify", new, new)
    assert (
        done.code == 2
        and len(done.lines) == 1
        and "--no-verify" not in done.err
        and "new.onnx" in done.err
    )


def test_one_leg(run: Run, branches: Path) -> None:
    done = run("verify", branches, branches, "--leg", "onnxruntime")
    assert done.code == 0 and "float64" not in done.out


def test_nothing_to_compare_is_not_proved(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nan.onnx"
    onnx.save(
        parse("g (float[3] x) => (float[3] y) { n = Abs(x) e = Exp(n) m = Neg(e) y = Log(m) }"),
        path,
    )
    done = run("verify", path, path, "--json", tmp_path / "r.json")
    assert (done.code, done.err) == (1, "") and "not proved on cpu" in done.out
    assert "nothing finite to compare in y" in done.out
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["verdict"] == "not proved" and found["compared"] == {"y": 0} and found["unproved"]
    assert run("verify", path, path, "--allow-empty", "y").code == 0
    done = run("verify", path, path, "--allow-empty", "z")
    assert done.code == 2 and "no such output" in done.err


def test_a_leg_that_did_not_run_is_in_the_verdict(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parse("g (float[N] x) => (int32[N] y) { y = BitCast <to = 6> (x) }", opset=26), path)
    done = run("verify", path, path, "--json", tmp_path / "r.json")
    assert done.code == 0 and done.out.startswith("equal on cpu; float64 leg did not run")
    assert "float64 leg did not run" in json.loads((tmp_path / "r.json").read_text())["summary"]


def test_python_and_the_command_give_one_verdict(run: Run, branches: Path) -> None:
    """Both look whether weights were computed anew."""
    other = scaled(branches, 1 + 1.2e-7)
    assert verify(branches, other).ok and run("verify", branches, other).code == 0
    assert not verify(branches, other, float64_exact=True)
