"""An outline has no weights, and the digest of a model does not depend on them."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

import onnxgrad
from onnxgrad.jobs.rebasing.outline import digest_of, initializers
from tests.helpers import parse

SCALED = """g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 3}> {
  p = MatMul (x, w)  y = Mul (p, s) }"""


def test_an_outline_has_no_weights() -> None:
    model = parse(SCALED)
    model.graph.node[0].metadata_props.add(key="stack", value="line 3")
    original = onnxgrad.optimize(model, rebasable=True, report=True).record.original
    assert not original.graph.node[0].metadata_props
    assert [(n, list(t.dims)) for n, t in initializers(original)] == [("w", [2, 3]), ("s", [3])]
    assert not any(t.raw_data or t.float_data for _, t in initializers(original))


def test_the_digest_is_about_the_graph() -> None:
    """Whatever the weights, and wherever they are stored; other nodes, names or numbers are another model."""
    done = onnxgrad.optimize(parse(SCALED), rebasable=True, report=True)
    made, digest = done.record.made, done.record.digest
    model = done.model
    assert digest_of(model, made) == digest
    (tensor,) = [t for t in model.graph.initializer if t.name in made]
    tensor.CopyFrom(numpy_helper.from_array(np.zeros((2, 3), np.float32), tensor.name))
    assert digest_of(model, made) == digest
    model.graph.node[0].name = "other"
    assert digest_of(model, made) != digest
