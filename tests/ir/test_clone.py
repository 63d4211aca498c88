"""Copies of bindings keep their meaning, their bodies and what is known of their types."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from tests.helpers import parse

TEXT = """g (float[2,3] x, bool c) => (float[2,3] y) {
  t = Tanh(x)
  r, s = If (c) <
    then_branch = a () => (float[2,3] p, int64[2] k) { p = Neg(t) k = Shape(p) },
    else_branch = b () => (float[2,3] q, int64[2] l) { q = Abs(t) l = Shape(q) }
  >
  y = Add(r, t)
}"""


def test_a_binding_with_bodies() -> None:
    program = load(parse(TEXT))
    block = program.main
    before = list(block.bindings)
    copies = clone_bindings(before, block, mapping := dict[Var, Var | None](), prefix="again_")
    for old, new in zip(before, copies, strict=True):
        assert [v and v.type for v in new.outputs] == [v and v.type for v in old.outputs]
        assert [v and v.name for v in new.outputs] == [v and f"again_{v.name}" for v in old.outputs]
    copied = mapping[block.outputs[0]]
    assert copied is not None and copied.type is not None
    inner = next(iter(copies[1].blocks["then_branch"].bindings))
    assert inner.inputs[0] is mapping[before[0].out], "bodies read the copies"
    block.add_output(copied)
    block.check()
    model = to_proto(program)
    onnx.checker.check_model(model, full_check=True)
    x = np.array([[1, -2, 3], [0, 0.5, -1]], np.float32)
    for c in (True, False):
        a, b = ReferenceEvaluator(model).run(None, {"x": x, "c": np.array(c)})
        np.testing.assert_array_equal(a, b)


def test_a_body_keeps_the_ranks_that_it_declares() -> None:
    """onnxruntime wants the rank of each result of a Scan, also behind a value of unknown rank."""
    program = load(
        parse("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[2,3] x, float[3] z, int64[K] sizes) => (h, y) {
          u = Reshape (z, sizes)
          h, y = Scan <num_scan_inputs = 1, body = q (float[3] s, float[3] e) => (float[3] b, float[3] o) {
            b = Add (e, u)  o = Mul (b, s) }> (z, x) }""")
    )  # fmt: skip
    (scan,) = (b for b in program.main.bindings if b.op == "Scan")
    (copy,) = clone_bindings([scan], program.main, {}, prefix="again_")
    assert [v.rank for v in copy.blocks["body"].outputs] == [1, 1]


def test_an_operand_left_out() -> None:
    program = load(
        parse("g (float[3] x, float lo, float hi) => (float[3] y) { y = Clip(x, lo, hi) }")
    )
    clip = next(iter(program.main.bindings))
    (copy,) = clone_bindings(
        [clip], program.main, {clip.inputs[2]: None} if clip.inputs[2] is not None else {}
    )
    assert [v is not None for v in copy.inputs] == [True, True] and list(copy.node.input) == [
        "x",
        "lo",
    ]


def test_a_body_in_any_order() -> None:
    """A rewrite may leave a reader before what it reads."""
    program = load(
        parse(TEXT.replace("p = Neg(t) k = Shape(p)", "n = Neg(t) p = Abs(n) k = Shape(p)"))
    )
    block = program.main
    body = list(block.bindings)[1].blocks["then_branch"]
    body.bindings = dict.fromkeys(reversed(body.bindings))
    copies = clone_bindings(list(block.bindings), block, mapping := dict[Var, Var | None]())
    own = copies[1].blocks["then_branch"]
    assert all(v.block is not body for b in own.bindings for v in b.inputs if v is not None)
    copied = mapping[block.outputs[0]]
    assert copied is not None
    block.add_output(copied)
    block.check()
    onnx.checker.check_model(to_proto(program), full_check=True)


def test_a_result_that_cannot_be_inferred_keeps_its_type() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "acme" : 1]>
        g (float[2,3] x) => (float[2,3] y) <float[2,3] h> { h, i = acme.Mystery (x)  y = Neg (h) }"""
    )
    block = load(model).main
    copies = clone_bindings(list(block.bindings), block, dict[Var, Var | None]())
    h, i = copies[0].outputs
    assert h is not None and str(h.type) == "f32[?,?]" and i is not None and i.type is None
