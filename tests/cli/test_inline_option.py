from __future__ import annotations

from pathlib import Path

import onnx

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
