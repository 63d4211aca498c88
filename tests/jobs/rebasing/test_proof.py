"""The proof of new weights compares with the original after the same changes, also of a model in two parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import NotProved
from onnxgrad.ir.derivations import Step
from tests.jobs.rebasing.test_changes import filled
from tests.jobs.rebasing.test_rebase import optimized

LIFTED = """g (float[N,64] x) => (float[N,64] y) <float[64,64] w, float[64,64] a, float[64,64] b, float[64] k> {
  d = MatMul (a, b)  v = Add (w, d)  t = Transpose (v)  n = Neg (x)  h = MatMul (n, t)  y = Mul (h, k) }"""


@pytest.mark.parametrize(
    "text",
    [
        "lift = ['a', 'b']",
        "lift = ['b', 'q']\n[before]\nrename = { a = 'q', x = 'z' }",
        "lift = 'a,b'\n[after]\nrename = { a = 'A', y = 'z' }",
        "lift = ['a', 'b']\nfloat16 = { io = true }",
    ],
)
def test_both_parts_of_a_split_model(text: str, tmp_path: Path) -> None:
    """The preparation has new constants, too; the weights that it reads are the caller's."""
    path, first, second = tmp_path / "r.toml", filled(LIFTED, 1), filled(LIFTED, 2)
    path.write_text(text)
    done = optimized(first, recipe=path)
    assert done.record.prepared and done.record.made
    anew = onnxgrad.optimize(second, recipe=path, verify=False)
    assert onnxgrad.rebase(done.model, second, record=done.record) == anew
    assert onnxgrad.rebase(done.model.rest, second, record=done.record) == anew != done.model


def test_constants_that_a_split_moves(tmp_path: Path) -> None:
    """Without names of weights the preparation has no inputs."""
    path = tmp_path / "r.toml"
    path.write_text("lift = true\npasses = []")
    first, second = filled(LIFTED, 1), filled(LIFTED, 2)
    done = optimized(first, recipe=path)
    assert not done.model.prepare.graph.input and len(done.record.prepared) == 3
    found = onnxgrad.rebase(done.model, second, record=done.record)
    assert found == onnxgrad.optimize(second, recipe=path, verify=False)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("lift = ['a', 'b']", "made"),
        ("lift = ['a', 'b']", "prepared"),
        ("[after]\nrename = { y = 'z' }", "made"),
    ],
)
def test_a_wrong_constant_fails_the_proof(text: str, where: str, tmp_path: Path) -> None:
    """In the model or its preparation, a step that computes too much."""
    path = tmp_path / "r.toml"
    path.write_text(text)
    done = optimized(filled(LIFTED, 1), recipe=path)
    steps = getattr(done.record, where)
    wrong = {n: Step("numpy", "multiply", [step, np.float32(1.01)]) for n, step in steps.items()}
    record = replace(
        done.record, steps=[*done.record.steps, *wrong.values()], **{where: {**steps, **wrong}}
    )
    with pytest.raises(NotProved, match="the result: DIFFERENT"):
        onnxgrad.rebase(done.model, filled(LIFTED, 2), record=record)
