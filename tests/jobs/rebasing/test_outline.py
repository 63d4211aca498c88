"""An outline has no weights, and the digest of a model does not depend on them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.jobs.rebasing.outline import Frame, constants_of, digest_of, holders, initializers
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


def test_constants_that_are_not_made_keep_their_data() -> None:
    """In initializers, nodes, nested graphs and functions, large or not; the digest ignores large ones."""
    many = ", ".join(["1"] * 300)
    model = parse(f"""<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
      g (float[300] x, bool c) => (float[300] y) <float[300] a = {{{many}}}, float[1] b = {{2}}, float[300] w = {{{many}}}> {{
        k = Constant <value = float[300] {{{many}}}> ()  p = my.f (x)
        q = If (c) <then_branch = t () => (float[300] u) <float[300] v = {{{many}}}> {{ u = Add (p, v) }},
                    else_branch = e () => (float[300] i) {{ i = Mul (p, k) }}>
        r = Add (q, a)  s = Mul (r, w)  y = Add (s, b) }}
      <domain: "my", opset_import: ["" : 20]> f (d) => (h) {{
        j = Constant <value = float[300] {{{many}}}> ()  h = Add (d, j) }}""")
    model.graph.initializer[0].doc_string = "text"
    frame = Frame.of(model, {"w", "v"}, holders(model))
    assert holders(model) == [0, 2] and frame.made.keys() == {"w", "v"}
    assert len(frame.others) == 3 and frame.model.ByteSize() < 1500 < 5 * 1200 < model.ByteSize()
    digest, made = frame.digest(), frame.complete()
    assert digest == digest_of(model, {"w", "v"})
    assert made != model
    for name, tensor in constants_of(model):
        if name in frame.made:
            frame.made[name].CopyFrom(tensor)
    assert made == model


def test_a_record_of_another_model() -> None:
    """Also if the record looks for constants in nodes that the model lacks."""
    text = """g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> { r = Mul (x, w)
      y = If (c) <then_branch = t () => (float[2] u) { u = Neg (r) }, else_branch = e () => (float[2] v) { v = Abs (r) }> }"""
    done = onnxgrad.optimize(parse(text), rebasable=True, report=True)
    assert done.record.holders == [1]
    with pytest.raises(InputError, match="its record belongs to another optimised model"):
        onnxgrad.rebase(parse(SCALED), parse(text), record=done.record)
