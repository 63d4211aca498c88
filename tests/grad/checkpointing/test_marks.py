"""SPEC, added after a second reading, S2c: checkpoint marks may stand in the file, and leave no trace in the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import gradient
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.grad.checkpointing.marks import END, START
from onnxgrad.grad.checkpointing.recomputation import Checkpoint
from onnxgrad.verify.running.session import run
from tests.grad.checkpointing.test_checkpointing import CHAIN, GOLDEN, again
from tests.grad.numeric import normal
from tests.helpers import parse

MARKS = Checkpoint(start=[("a", "b")], end=[("c", "d")])


def metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {f"{n.output[0]} {e.key}": e.value for n in model.graph.node for e in n.metadata_props}


def test_golden_with_its_marks_in_the_file() -> None:
    marked = onnxgrad.mark_checkpoints(parse(GOLDEN), checkpoint=MARKS)
    assert metadata(marked) == {f"b {START}": "[0]", f"d {END}": "[0]"}
    onnx.checker.check_model(marked)
    graph = gradient(marked)
    assert graph.SerializeToString() != gradient(parse(GOLDEN)).SerializeToString()
    assert again(graph) == again(gradient(parse(GOLDEN), checkpoint=MARKS)) == ["b", "c"]
    assert not any("checkpoint" in key for key in metadata(graph))
    np.testing.assert_array_equal(
        run(graph, {"x": normal(4)})["x_grad"],
        run(gradient(parse(GOLDEN)), {"x": normal(4)})["x_grad"],
    )
    # marks given count instead of those in the file, which go all the same
    plain = gradient(marked, checkpoint=Checkpoint())
    assert again(plain) == [] and not any("checkpoint" in key for key in metadata(plain))


def test_automatic_marks_are_written_and_read(tmp_path: Path) -> None:
    source, target, result = (str(tmp_path / n) for n in ("m.onnx", "marked.onnx", "g.onnx"))
    onnx.save(parse(CHAIN), source)
    assert main(["grad", source, "--mark", "--checkpoint", "auto", "-o", target]) == 0
    marked = onnx.load(target)
    assert [n.op_type for n in marked.graph.node] == [
        n.op_type for n in onnx.load(source).graph.node
    ]
    assert list(marked.graph.output) == list(onnx.load(source).graph.output)
    assert main(["grad", target, "-o", result]) == 0
    assert again(onnx.load(result)) == again(gradient(parse(CHAIN), checkpoint="auto")) != []
    assert main(["grad", source, "--mark", "-o", target]) == 2


def test_a_marked_call_that_is_opened() -> None:
    """The mark goes over to what reads the value in the function's body."""
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[4] x) => (float loss) { a = my.e (x) b = my.f (a) c = Sin (b) loss = ReduceSum <keepdims = 0> (c) }
    <domain: "my", opset_import: ["" : 20]> e (v) => (w) { w = Exp (v) }
    <domain: "my", opset_import: ["" : 20]> f (v) => (w) { k = Tanh (v) w = Sigmoid (k) }"""
    model = onnx.parser.parse_model(text)
    graph = gradient(onnxgrad.mark_checkpoints(model, checkpoint=["a"]))
    copies = [n.op_type for n in graph.graph.node if n.output[0].startswith("again_")]
    assert sorted(copies) == ["Sigmoid", "Tanh"]
    expected = run(gradient(model), {"x": normal(4)})
    np.testing.assert_allclose(
        run(graph, {"x": normal(4)})["x_grad"], expected["x_grad"], rtol=1e-6
    )


def test_a_value_that_only_a_branch_reads_is_marked_by_name() -> None:
    model = parse(
        """g (float[3] x, bool c) => (float loss) { a = Exp (x) b = Tanh (a)
        y = If (c) <then_branch = t () => (float[3] p) { p = Mul (b, b) }, else_branch = e () => (float[3] q) { q = Sin (b) }>
        z = Tanh (y) loss = ReduceSum <keepdims = 0> (z) }"""
    )
    marked = onnxgrad.mark_checkpoints(model, ["x"], checkpoint=["b"])
    assert metadata(marked) == {f"y {START}": '["b"]'}
    feeds = {"x": normal(3), "c": np.array(True)}
    np.testing.assert_allclose(
        run(gradient(marked, ["x"]), feeds)["x_grad"],
        run(gradient(model, ["x"]), feeds)["x_grad"],
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    "text", ["nonsense", '{"a": 1}', "[7]", '["elsewhere"]', "[-1]", "[" * 5000]
)
def test_a_damaged_mark_is_named(text: str) -> None:
    model = onnxgrad.mark_checkpoints(parse(GOLDEN), checkpoint=["a"])
    next(e for n in model.graph.node for e in n.metadata_props if e.key == START).value = text
    with pytest.raises(InputError, match=r"metadata onnxgrad\.checkpoint\.start of '"):
        gradient(model)


LOOP = """g (float[2,4] x, float[4,4] w) => (float[2,4] y) <int64 n = {3}, bool on = {1}> {
    y = Loop (n, on, x) <body = l (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] r) {
        d = Identity (c)  m = MatMul (s, w)  t = Tanh (m)  q = Sin (t)  u = Mul (q, t)  r = Add (s, u) }> }"""
SCAN = """g (float[3,4] x, float[4] w) => (float[4] h, float[3,4] y) <float[4] z = {1, 2, 3, 4}> {
    h, y = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] i) => (float[4] r, float[4] o) {
        m = Mul (s, w)  t = Tanh (m)  a = Add (t, i)  r = Sin (a)  o = Mul (r, t) }> (z, x) }"""
DEEP = """g (float[3,4] x, float[4] w) => (float[4] h)
    <float[4] z = {1, 2, 3, 4}, int64 two = {2}, bool on = {1}, float zero = {0}> {
    h = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] i) => (float[4] r) {
        p = ReduceSum <keepdims = 0> (i)  k = Greater (p, zero)  m = Mul (s, w)
        e = If (k) <then_branch = t () => (float[4] e1) { v = Tanh (m)  e0 = Sin (v)  e1 = Mul (e0, v) },
                    else_branch = f () => (float[4] e2) { e2 = Cos (m) }>
        r = Loop (two, on, e) <body = l (int64 j, bool c, float[4] a) => (bool d, float[4] a3) {
            d = Identity (c)  a1 = Mul (a, w)  a2 = Tanh (a1)  a3 = Add (a2, i) }> }> (z, x) }"""


def _inner(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Returns the nodes of nested graphs."""
    nested = [a.g for n in graph.node for a in n.attribute if a.type == a.GRAPH]
    return [node for g in nested for node in (*g.node, *_inner(g))]


@pytest.mark.parametrize("text", [LOOP, SCAN, DEEP], ids=["Loop", "Scan", "If and Loop in Scan"])
def test_marks_in_bodies(text: str) -> None:
    """Each value of a nested graph alone, by name and by its mark in the file: the step is the same
    and is cut where a later node of it reads the value.
    """
    model = parse(text)
    target = model.graph.output[0].name
    plain = gradient(model, target=target)
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in plain.graph.input}
    feeds = {name: normal(*shape) for name, shape in sizes.items()}
    expected, cut = run(plain, feeds), set()
    for name in [n.output[0] for n in _inner(model.graph)]:
        marked = onnxgrad.mark_checkpoints(model, target=target, checkpoint=[name])
        by_name, by_mark = (
            gradient(model, target=target, checkpoint=[name]),
            gradient(marked, target=target),
        )
        assert by_name.SerializeToString() == by_mark.SerializeToString()
        assert not any(
            e.key in (START, END) for n in _inner(by_mark.graph) for e in n.metadata_props
        )
        for value, array in run(by_mark, feeds).items():
            np.testing.assert_allclose(array, expected[value], rtol=1e-6, err_msg=f"{name} {value}")
        if any(n.op_type == "IsNaN" for n in _inner(by_mark.graph)):
            cut.add(name)
    assert cut >= {LOOP: {"m", "t"}, SCAN: {"m", "t", "a"}, DEEP: {"m", "v", "a1"}}[text], cut


def test_own_marks_replace_those_in_bodies() -> None:
    marked = onnxgrad.mark_checkpoints(parse(LOOP), checkpoint=["m"])
    plain = gradient(parse(LOOP)).SerializeToString()
    assert gradient(marked).SerializeToString() != plain
    assert gradient(marked, checkpoint=Checkpoint()).SerializeToString() == plain
