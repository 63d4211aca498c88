"""strip-metadata: doc strings and entries of every part but the model itself are gone, and nothing else changes."""

from __future__ import annotations

import pytest

from onnxgrad.ir.load import load_own
from onnxgrad.ir.protobufs import described, every_graph, model_nodes
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.strip_metadata import StripMetadata
from onnxgrad.rewrite.trace import Trace
from tests.helpers import parse

TEXT = """<ir_version: 10, opset_import: ["" : 20, "l" : 1]>
  g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
    z = l.F (x)
    y = If (c) <then_branch = t () => (float[2] u) { u = Mul (z, w) },
                else_branch = e () => (float[2] v) <float[2] k = {3, 4}> { v = Add (z, k) }> }
  <domain: "l", opset_import: ["" : 20]> F (a) => (b) { b = Exp (a) }"""


@pytest.mark.parametrize(("keys", "left"), [("*", set()), ("tr*", {"kept", "doc_string"}), ("doc_string", {"kept", "trace"})])  # fmt: skip
def test_entries_of_every_part(keys: str, left: set[str]) -> None:
    model = parse(TEXT)
    bodies = [*every_graph(model.graph), *model.functions]
    parts = [*model_nodes(model), *(part for body in bodies for part in described(body))]
    assert len(parts) == 5 + 4 + (2 + 1 + 1) + 1 + 2  # nodes, bodies, of g, of t, of e
    for part in parts:
        part.doc_string = "made here"
        for key in ("trace", "kept"):
            part.metadata_props.add(key=key, value="v")
    model.doc_string = "of the model"
    before = model.SerializeToString()
    program, trace = load_own(model), Trace()
    StripMetadata(keys=keys).run(program, trace)
    made = to_proto(program)
    assert made.doc_string == "of the model" and model.SerializeToString() == before
    found = [*every_graph(made.graph), *made.functions]
    found = [*model_nodes(made), *(part for body in found for part in described(body))]
    for part in found:
        documented = {"doc_string"} if part.doc_string else set()
        assert {e.key for e in part.metadata_props} | documented == left
    assert len(found) == len(parts)
    (note,) = trace.notes
    assert note.startswith("metadata of 5 nodes and 11 other parts removed: ")
    again = Trace()
    StripMetadata(keys=keys).run(program, again)
    assert not again.notes
    if keys == "*":
        assert made.graph == parse(TEXT).graph and list(made.functions) == list(
            parse(TEXT).functions
        )
