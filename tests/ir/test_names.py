"""Fresh names, renaming, and outputs that keep their names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxgrad.errors import InternalError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from tests.helpers import parse
from tests.ir.test_block import definition, find


def test_names_in_use_are_never_fresh() -> None:
    model = parse("g (float[2] x) => (float[2] y) { [node] t = Neg(x) y = Neg(t) }")
    model.graph.value_info.add(name="stale").type.tensor_type.elem_type = 7
    program = load(model)
    assert [program.names.fresh(n) for n in ("x", "t", "node", "stale", "new")] == [
        "x_2",
        "t_2",
        "node_2",
        "stale_2",
        "new",
    ]


REPLACE = """
g (float[2] x) => (float[2] y, float[2] z, float[2] k) <float[2] k = {5, 6}, float[2] m = {7, 8}> {
    t = Neg(x)
    y = Abs(t)
    z = Add(y, k)
    u = Exp(x)
}
"""


@pytest.mark.parametrize(
    ("old", "new", "identity", "expected"),
    [
        (
            "y",
            "u",
            False,
            {"y": "exp", "z": "exp+k", "k": "k"},
        ),  # a new result takes over the output's name
        ("y", "x", True, {"y": "x", "z": "x+k", "k": "k"}),  # a graph input
        ("y", "m", True, {"y": "m", "z": "m+k", "k": "k"}),  # an initializer
        ("y", "z", True, None),  # an output already, which reads y: a cycle, reported
        ("z", "y", True, {"y": "abs", "z": "abs", "k": "k"}),  # an output already
        ("k", "m", True, {"y": "abs", "z": "abs+m", "k": "m"}),  # an initializer that is an output
        ("k", "u", False, {"y": "abs", "z": "abs+exp", "k": "exp"}),
        ("t", "u", False, {"y": "exp", "z": "exp+k", "k": "k"}),  # no output at all
    ],
)
def test_replace_keeps_output_names(
    old: str, new: str, identity: bool, expected: dict[str, str] | None
) -> None:
    block = load(parse(REPLACE)).main
    block.replace(find(block, old), find(block, new))
    if expected is None:
        with pytest.raises(InternalError, match="cycle"):
            block.check()
        return
    block.check()
    assert any(b.op == "Identity" for b in block.bindings) is identity
    model = to_proto(block.program)
    onnx.checker.check_model(model, full_check=True)
    x, k, m = (
        np.array([1, -2], np.float32),
        np.array([5, 6], np.float32),
        np.array([7, 8], np.float32),
    )
    values = {"exp": np.exp(x), "k": k, "m": m, "x": x, "abs": np.abs(x)}
    found = dict(
        zip(
            [o.name for o in model.graph.output],
            ReferenceEvaluator(model).run(None, {"x": x}),
            strict=True,
        )
    )
    for name, text in expected.items():
        np.testing.assert_allclose(
            found[name], sum(values[part] for part in text.split("+")), rtol=1e-6
        )


def test_replace_of_an_input_that_is_an_output_keeps_both_names() -> None:
    block = load(
        parse("g (float[2] x, float[2] v) => (float[2] x, float[2] y) { y = Neg(x) }")
    ).main
    x, v = block.inputs
    block.replace(x, v)
    block.check()
    assert [o.name for o in block.outputs] == ["x", "y"] and definition(block, "y").inputs == [v]
    with pytest.raises(InternalError, match="interface"):
        x.rename("other")


def test_replace_of_a_value_that_nested_blocks_return_directly() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
      a = Neg(x)
      b = Exp(x)
      y = If (c) <then_branch = t () => (float[2] a) {}, else_branch = e () => (float[2] p) { p = Abs(a) }>
    }"""
    block = load(parse(text)).main
    a, b = find(block, "a"), find(block, "b")
    block.replace(a, b)
    block.check()
    assert (a.use_count, b.use_count) == (0, 2)
    then = to_proto(block.program).graph.node[2].attribute[0].g
    assert [o.name for o in then.output] == ["b"]


def test_pinned_values_keep_their_names() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { t = Mul(x, w) d = Mul(w, x) y = Neg(t) }"
    )
    info = model.training_info.add()
    info.update_binding.add(key="w", value="t")
    info.algorithm.name = "step"
    block = load(model).main
    block.replace(find(block, "t"), find(block, "d"))
    block.remove_unused()
    block.check()
    after = to_proto(block.program)
    assert after.training_info == model.training_info
    assert "t" in {n for node in after.graph.node for n in node.output}
    assert find(block, "w").use_count == 2  # one product, and the note


def test_renaming_an_output_renames_it_everywhere() -> None:
    model = parse(REPLACE)
    model.graph.value_info.add(name="t").type.CopyFrom(model.graph.output[0].type)
    block = load(model).main
    find(block, "y").rename("answer")
    find(block, "t").rename("y")
    block.check()
    after = to_proto(block.program)
    onnx.checker.check_model(after, full_check=True)
    assert [o.name for o in after.graph.output] == ["answer", "z", "k"]
    assert after.graph.output[0].type == model.graph.output[0].type
    assert [list(n.output) for n in after.graph.node] == [["y"], ["answer"], ["z"], ["u"]]
