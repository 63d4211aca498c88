"""What the tests of the command line share: `run(*words)` through `main`, and small models as files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.__main__ import main
from tests.helpers import parse

# three products that share x; an Identity and an unused weight to clean away
BRANCHES = """
g (float[N, 4] x) => (float[N, 3] y, float[N, 3] z)
<float[4, 3] a = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4, 3] b = {2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13},
 float[4, 3] c = {3, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14}, float[2] unused = {1, 2}> {
  same = Identity(x)
  p = MatMul(x, a)
  q = MatMul(same, b)
  r = MatMul(x, c)
  y = Add(p, q)
  z = Tanh(r)
}
"""


# valid, and of a float type that onnxruntime's CPU has no kernel of the operator for
NO_KERNEL = """
g (double[1, 2, 4, 4] x) => (double[1, 2, 1, 1] y) { same = Identity(x) y = GlobalLpPool(same) }
"""


@dataclass(frozen=True)
class Result:
    """What one call of the command line left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`run("optimize", path, ...)`: exit code, stdout, stderr."""

    def call(*words: object) -> Result:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def branches(tmp_path: Path) -> Path:
    """A file with BRANCHES."""
    path = tmp_path / "branches.onnx"
    model = parse(BRANCHES)
    for (
        tensor
    ) in model.graph.initializer:  # as exporters write them, and as can be moved to external files
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, path)
    return path
