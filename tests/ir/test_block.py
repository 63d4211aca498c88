"""Def-use chains stay exact and meaning is kept, whatever the order of edits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from tests.helpers import parse

# an If that captures, returns captured values directly and repeats names in its branches; an initializer and an input
# that are outputs; an output read by others
GRAPH = """
g (float[2,3] x, float[2,3] y, bool c) => (float[2,3] a, float[2,3] out, float[2,3] w, float[2,3] r, float[2,3] x2)
<float[2,3] w = {1, 2, 3, 4, 5, 6}> {
    a = Add(x, y)
    b = Mul(a, w)
    r = If (c) <
        then_branch = t () => (float[2,3] p) { q = Tanh(b) p = Add(q, a) },
        else_branch = e () => (float[2,3] p) { q = Neg(y) s = Relu(x) p = Sub(q, s) }
    >
    d = Sub(b, r)
    x2 = Identity(x)
    out = Mul(d, d)
}
"""
FEEDS: dict[str, Any] = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3) - 2,
    "y": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
}


def results(model: onnx.ModelProto) -> list[Any]:
    runs = ReferenceEvaluator(model)
    return [out for c in (True, False) for out in runs.run(None, {**FEEDS, "c": np.array(c)})]


def blocks(block: BindingBlock) -> list[BindingBlock]:
    return block.program.blocks()


def edit(block: BindingBlock, choose: random.Random) -> None:
    """One edit that keeps the meaning."""
    here = choose.choice(blocks(block))
    values = [v for v in here.vars() if v.dtype == onnx.TensorProto.FLOAT]
    if not values:
        return
    old = choose.choice(values)
    kind = choose.choice(
        ["replace", "wrap one operand", "copy", "sweep", "rename", "share", "add then remove"]
    )
    if kind == "replace":  # every reader of old reads old + 0, the addition itself excepted
        with emitting(here) as at:
            new = old + 0.0
        here.replace(old, new)
        (added,) = (b for b in at.emitted if b.op == "Add")
        here.set_operand(added, 0, old)
        if (
            old.returned
        ):  # the names were swapped, so `old` must not be returned by the sum's own name
            assert old.block is here
    elif kind == "wrap one operand":
        readers = [b for b in old.users if b.is_live]
        if readers:
            reader = choose.choice(readers)
            with emitting(here):
                wrapped = op.Identity(old)
            here.set_operand(reader, reader.inputs.index(old), wrapped)
    elif (
        kind == "copy"
        and old.definition is not None
        and not old.definition.blocks
        and here.owner is None
    ):
        with emitting(here):
            copy = op.Identity(op.Identity(old))
        assert copy.use_count == 0
    elif kind == "sweep":
        here.remove_unused()
    elif kind == "rename" and old.definition is not None and not old.returned:
        old.rename(here.program.names.fresh(f"{old.name}_renamed"))
    elif kind == "share":
        with emitting(here, share=True):
            first = old * 1.0
            assert op.Mul(old, 1.0) is first
        readers = [b for b in old.users if b is not first.definition]
        for b in readers:
            for i, v in enumerate(b.inputs):
                if v is old:
                    here.set_operand(b, i, first)
    elif kind == "add then remove":
        with emitting(here) as at:
            op.Tanh(old + constant(np.ones(3, np.float32)))
        at.discard()


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 14))
def test_random_edits(seed: int, count: int) -> None:
    model = parse(GRAPH)
    before, expected = model.SerializeToString(), results(model)
    block = load(model).main
    choose = random.Random(seed)
    for _ in range(count):
        edit(block, choose)
        block.check()
    block.remove_unused()
    block.check()
    after = to_proto(block.program)
    onnx.checker.check_model(after, full_check=True)
    assert [o.name for o in after.graph.output] == [o.name for o in model.graph.output]
    assert [i.name for i in after.graph.input] == [i.name for i in model.graph.input]
    for a, b in zip(results(after), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.SerializeToString() == before


def find(block: BindingBlock, name: str) -> Var:
    return next(v for v in block.vars() if v.name == name)


def definition(block: BindingBlock, name: str) -> Binding:
    found = find(block, name).definition
    assert found is not None
    return found


def test_removing_what_is_read_is_refused() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] k) <float[2] k = {5, 6}, float[2] m = {7, 8}> {
      t = Neg(x) y = Abs(t) u = Exp(x) }"""
    block = load(parse(text)).main
    with pytest.raises(InternalError, match="still read"):
        block.remove(definition(block, "t"))
    with pytest.raises(InternalError, match="still needed"):
        block.remove_initializer(find(block, "k"))
    block.remove_initializer(find(block, "m"))
    assert block.remove_unused() == 1
    assert [b.out.name for b in block.bindings] == ["t", "y"]


def test_bindings_of_a_removed_binding_are_not_live() -> None:
    block = load(parse(GRAPH)).main
    owner = definition(block, "r")
    inner = next(iter(owner.blocks["then_branch"].bindings))
    assert inner.is_live
    block.replace(owner.out, find(block, "a"))
    block.remove_unused()
    assert not inner.is_live and not owner.is_live
    block.check()


def test_an_omitted_output_can_be_named_later() -> None:
    block = load(
        parse("g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = MaxPool<kernel_shape=[3,3]>(x) }")
    ).main
    pool = definition(block, "y")
    indices = block.add_result(pool, 1, block.program.names.fresh("indices"), None)
    block.add_output(indices)
    block.check()
    assert list(to_proto(block.program).graph.node[0].output) == ["y", "indices"]
    with pytest.raises(InternalError, match="a name already"):
        block.add_result(pool, 1, "again", None)


def test_a_node_is_written_anew_in_place() -> None:
    """Other operands, an attribute less, another operator: chains are exact, name and metadata stay."""
    text = "g (float[2,3] x, float[2,3] y) => (float[2,3] z) { a = Neg(x) z = Concat <axis = 0> (x, a, y, y) }"
    program = load(parse(text))
    block = program.main
    block.bindings = dict.fromkeys(block.bindings)
    b = next(b for b in block.bindings if b.op == "Concat")
    b.set_metadata({"k": "v"})
    x, y = block.inputs
    block.set_operands(b, [y, x, None])
    b.drop_attribute("axis")
    b.rename_operator("Sub")
    block.check()
    assert str(b).endswith("= Sub(y, x)") and y.users == {b: 1} and x.use_count == 2
    node = to_proto(program).graph.node[1]
    assert (node.op_type, list(node.input), len(node.attribute)) == ("Sub", ["y", "x"], 0)
    assert node.metadata_props[0].value == "v"


def test_a_value_that_replaces_itself_changes_nothing() -> None:
    program = load(parse("g (float[2] x) => (float[2] y) { y = Neg (x) }"))
    block = program.main
    before = to_proto(program).SerializeToString()
    for v in (block.inputs[0], block.outputs[0]):
        block.replace(v, v)
    assert to_proto(program).SerializeToString() == before
