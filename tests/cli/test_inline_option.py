from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.app import main
from tests.passes.test_remove_unused_functions import function, model


def test_functions_named_on_the_command_line(tmp_path: Path) -> None:
    given = model(
        "a = local.f(x)  y = local.g(a)", function("f", "t = Abs(x)  y = Sqrt(t)"), function("g")
    )
    onnx.save(given, tmp_path / "m.onnx")
    words = [
        "optimize",
        str(tmp_path / "m.onnx"),
        "-q",
        "--inline",
        "local::f",
        "-o",
        str(tmp_path / "out.onnx"),
    ]
    assert main(words) == 0
    found = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in found.graph.node] == ["Abs", "Sqrt", "g"]
    assert [f.name for f in found.functions] == ["g"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("local::ff", "did you mean 'local::f'?"), ("nothing", "it has local::f, ...")],
)
def test_a_name_of_nothing_is_refused(run: Callable, tmp_path: Path, name: str, said: str) -> None:
    onnx.save(model("y = local.f(x)", function("f", "y = Abs(x)")), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    done = run("optimize", tmp_path / "m.onnx", "--inline", "local::*", "--inline", name, "-o", out)
    assert done.code == 2 and len(done.lines) == 1 and not out.exists()
    assert f"--inline {name} matches no function" in done.err and said in done.err
    assert run("optimize", tmp_path / "m.onnx", "--inline", "*", "--no-verify", "-o", out).code == 0
