"""Emission: literals, versions, sharing, provenance, nested blocks, function bodies, errors that name the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from onnxgrad.errors import InternalError, UnknownDtype
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emit_with_blocks, emitting, nested_block
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from tests.helpers import parse


def block_of(inputs: str, opset: int = 20) -> BindingBlock:
    """A block with these inputs whose one output is a constant, so that every input is free."""
    graph = f"g ({inputs}) => (float[1] one) {{ one = Constant<value = float[1] {{1}}>() }}"
    return load(parse(graph, opset=opset)).main


def finish(block: BindingBlock, *results: Var) -> onnx.ModelProto:
    for v in results:
        block.add_output(v)
    block.check()
    model = to_proto(block.program)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize(
    "dtype", ["float", "float16", "bfloat16", "double", "int64", "int32", "uint8"]
)
def test_literals_take_the_dtype_of_the_type_variable(dtype: str) -> None:
    block = block_of(f"{dtype}[N,3] g, bool[N,3] c, int64[N] i")
    g, c, i = block.inputs
    with emitting(block):
        found = [op.Where(c, g, 0.0), op.Where(c, 0, g), g * 2, 1 - g, op.Pad(g, [0, 1, 0, 1], 1.0)]
        gathered, one_hot = op.Gather(g, [0, 2], axis=1), op.OneHot(i, 5, [0.0, 1.0])
    assert {v.dtype for v in found} == {g.dtype} and str(gathered.type).endswith("[N,2]")
    assert one_hot.type == TensorType(TensorProto.FLOAT, ("N", 5))
    finish(block, *found, gathered, one_hot)


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_a_float_literal_that_alone_decides_its_variable_follows_the_first_float(
    dtype: str,
) -> None:
    block = block_of(f"{dtype}[N] g")
    (g,) = block.inputs
    with emitting(block):
        power = g**2.0
    assert power.definition is not None and power.definition.inputs[1].dtype == g.dtype  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x, i: x @ np.ones((4, 2), np.float32),
            r"inner sizes differ: f32\[N,3\] @ f32\[4,2\]",
        ),
        (lambda x, i: x + np.ones(4, np.float32), r"do not broadcast: f32\[N,3\] and f32\[4\]"),
        (lambda x, i: x + i, "must have the dtype of|may not be"),
        (
            lambda x, i: op.Sum(i, i),
            r"Sum\(i: i64\[N\], i: i64\[N\]\): operand 'data_0' may not be i64",
        ),
        (lambda x, i: i * 0.5, r"i64 cannot hold the constant 0.5"),
        (lambda x, i: op.Cast(x, to=10) + 1e9, r"f16 cannot hold the constant 1000000000"),
        (lambda x, i: op.Transpose(x, perm=[0, 2]), r"perm \[0, 2\] does not fit f32\[N,3\]"),
        (lambda x, i: op.Transpose(x, axes=[0, 1]), "no attribute 'axes' .*it has: perm"),
        (lambda x, i: op.Concat(x, x, axis=2), "axis 2 does not fit"),
        (lambda x, i: op.Concat(x, op.Transpose(x), axis=1), None),
        (lambda x, i: op.Softmax(x, axis=0.5), "takes integers"),
        (lambda x, i: op.Relu(x, x), "2 operands, at version 14 it takes 1"),
        (lambda x, i: op.Clip(x, x, x, x), "4 operands, at version 13 it takes 1 to 3"),
        (lambda x, i: op.Concat(axis=0), "0 operands, at version 13 it takes 1 or more"),
        (lambda x, i: op.Frobnicate(x), "Frobnicate does not exist at opset 20"),
        (lambda x, i: op.Reshape(x, [2, 2, 7, -1]), None),
        (lambda x, i: op.Conv(x, x), "Conv"),
    ],
)
def test_errors_name_the_operands(make: Callable[..., Any], message: str | None) -> None:
    block = block_of("float[N,3] x, int64[N] i")
    with emitting(block):
        if message is None:
            make(*block.inputs)  # undecided here, so not refused
        else:
            with pytest.raises(InternalError, match=message) as error:
                make(*block.inputs)
            assert "\n" not in str(error.value)
    block.check()


def test_a_cast_to_an_unknown_dtype_declines() -> None:
    block = block_of("float[N] x")
    with emitting(block), pytest.raises(UnknownDtype, match="whose dtype is not known"):
        op.Cast(block.inputs[0], to=TensorProto.UNDEFINED)


def test_emission_outside_of_emitting() -> None:
    (x,) = block_of("float[2] x").inputs
    with pytest.raises(InternalError, match="emitted in a rule's function only"):
        x + 1


VERSIONED: dict[str, Callable[[Var], Any]] = {
    "reduce": lambda x: op.ReduceSum(x, [1], keepdims=0),
    "reduce_mean": lambda x: op.ReduceMean(x, [-1]),
    "squeeze": lambda x: op.Squeeze(op.Unsqueeze(x, [0, 3]), 0),
    "split": lambda x: op.Split(x, [1, 2], axis=1, outputs=2)[1],
    "split_evenly": lambda x: op.Split(x, axis=0, num_outputs=2, outputs=2)[0],
    "clip": lambda x: op.Clip(x, -0.5, 0.5),
    "clip_above": lambda x: op.Clip(x, None, 0.5),
    "pad": lambda x: op.Pad(x, [0, 1, 1, 0], 2.0),
    "slice": lambda x: op.Slice(x, [1], [3], [1]),
    "top_k": lambda x: op.TopK(x, 2, axis=1, outputs=2)[0],
    "leaky": lambda x: op.LeakyRelu(x, alpha=1),
}


@pytest.mark.parametrize("opset", [9, 11, 13, 18, 20, 23])
@pytest.mark.parametrize("name", VERSIONED)
def test_one_spelling_for_every_opset(name: str, opset: int) -> None:
    x = np.array([[0.1, -2, 3], [1, 0.2, -0.3]], np.float32)
    found = []
    for version in (opset, 20):
        block = block_of("float[2,3] x", opset=version)
        with emitting(block):
            result = VERSIONED[name](block.inputs[0])
        model = finish(block, result)
        found.append(ReferenceEvaluator(model).run(None, {"x": x})[1])
        assert found[-1].shape == result.shape
    np.testing.assert_array_equal(*found)


def test_operands_that_were_attributes_must_be_constant() -> None:
    block = block_of("float[2,3] x, int64[1] axes", opset=11)
    x, axes = block.inputs
    with emitting(block):
        with pytest.raises(InternalError, match="'axes' as an attribute"):
            op.ReduceSum(x, axes)
        assert op.ReduceSum(x, constant([1])).definition.attrs["axes"] == (1,)
    with (
        emitting(block_of("float[2,3] x", opset=9)) as at,
        pytest.raises(InternalError, match="2 operands"),
    ):
        op.Slice(at.block.inputs[0], [0], [2], [1], [2])  # steps came later


def test_sharing() -> None:
    block = block_of("float[2] x")
    (x,) = block.inputs
    with emitting(block, share=True):
        a = op.Tanh(x)
        assert op.Tanh(x) is a and op.Tanh(x + 0.0) is not a
        assert x + 1.0 is not x + 1.5 and x + 1.0 is x + 1.0
        assert op.Div(x, constant(0.0, 1)) is not op.Div(x, constant(-0.0, 1)), "bytes are compared"
        assert op.Softmax(x, axis=0) is not op.Softmax(x)
        assert op.RandomNormalLike(x) is not op.RandomNormalLike(x)
        assert op.TopK(x, 1, outputs=2)[1] is op.TopK(x, 1, outputs=2)[1]
        block.remove_unused()
        again = op.Tanh(x)
    assert again is not a and again.definition.is_live, "what was removed is not handed out again"
    block.check()
    with emitting(block):
        assert op.Tanh(x) is not op.Tanh(x)


UNION = {"a": "1 | 2", "b": "3", "onnxgrad.made_by": "law"}


@pytest.mark.parametrize(("ir_version", "expected"), [(9, {}), (10, UNION)])
def test_provenance_is_the_union(ir_version: int, expected: dict[str, str]) -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { t = Neg(x) u = Abs(x) y = Add(t, u) }",
        ir_version=ir_version,
    )
    for node, props in zip(model.graph.node, ({"a": "1"}, {"a": "2", "b": "3"})):
        for key, value in props.items():
            node.metadata_props.add(key=key, value=value)
    block = load(model).main
    sources = list(block.bindings)[:2]
    with emitting(block, sources=sources, made_by="law"):
        first = op.Tanh(block.inputs[0]).definition
    with emitting(block, sources=[first, *sources], made_by="law"):
        second = op.Tanh(block.inputs[0]).definition
    for b in (first, second):
        assert {m.key: m.value for m in b.node.metadata_props} == expected


def test_nested_blocks() -> None:
    block = block_of("float[2] x, bool c")
    x, c = block.inputs
    with emitting(block):
        branches = {}
        for name, power in (("then_branch", 2.0), ("else_branch", 3.0)):
            branches[name] = nested_block(name)
            with emitting(branches[name]):
                branches[name].add_output(op.Pow(x, power))
        (result,) = emit_with_blocks("If", [c], branches, [x.type])
    model = finish(block, result)
    run = ReferenceEvaluator(model)
    value = np.array([2, 3], np.float32)
    for c_value, expected in ((True, value**2), (False, value**3)):
        np.testing.assert_allclose(run.run(None, {"x": value, "c": np.array(c_value)})[1], expected)
    assert x.use_count == 2


def test_a_scan_body_has_typed_inputs() -> None:
    block = block_of("float[5,2] x")
    (x,) = block.inputs
    with emitting(block):
        body = nested_block("body")
        state, step = (
            body.add_input(block.program.names.fresh(n), TensorType(1, (2,)))
            for n in ("state", "step")
        )
        with emitting(body):
            total = state + step
            body.add_output(total)
            body.add_output(op.Identity(total))
        start = constant(np.zeros(2, np.float32))
        types = [TensorType(1, (2,)), TensorType(1, (5, 2))]
        last, sums = emit_with_blocks("Scan", [start, x], {"body": body}, types, num_scan_inputs=1)
    model = finish(block, last, sums)
    value = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(
        ReferenceEvaluator(model).run(None, {"x": value})[2], np.cumsum(value, axis=0)
    )


def test_literals_in_function_bodies_follow_an_operand_only_where_the_schema_says_so() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g (float[1,9,4] x, float[1,2,9] s) => (int64[N,3] y) { y = d.F(x, s) }
        <domain: "d", opset_import: ["" : 20]> F (x, s) => (y) { y = NonMaxSuppression(x, s) }"""
    )
    (body,) = load(model).functions.values()
    x, s = body.inputs
    with emitting(body) as at:
        op.NonMaxSuppression(x, s, 3, 0.5)  # float and int64 are its only types
        assert [b.op for b in at.emitted] == ["Constant", "Constant", "NonMaxSuppression"]
        op.Mul(x, 2.0)
        assert [b.op for b in at.emitted[3:]] == ["Constant", "CastLike", "Mul"]


@pytest.mark.parametrize("opset", [13, 14, 15, 16, 20])
def test_numbers_in_untyped_bodies_need_castlike(opset: int) -> None:
    """Which is from opset 15 on."""
    model = parse(
        f"""<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g (float[2] x) => (float[2] y) {{ y = d.F(x) }}
        <domain: "d", opset_import: ["" : {opset}]> F (x) => (y) {{ y = Neg(x) }}"""
    )
    (body,) = load(model).functions.values()
    with emitting(body) as at:
        if opset < 15:
            with pytest.raises(UnknownDtype, match=f"raise the function's opset {opset}"):
                op.Mul(body.inputs[0], 2.0)
        else:
            op.Mul(body.inputs[0], 2.0)
            assert [b.op for b in at.emitted] == ["Constant", "CastLike", "Mul"]


def test_function_bodies_get_constant_nodes() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g (float[2] x) => (float[2] y) { y = d.F(x) }
        <domain: "d", opset_import: ["" : 20]> F (x) => (y) { y = Neg(x) }"""
    )
    program = load(model)
    (body,) = program.functions.values()
    with emitting(body):
        doubled = op.Mul(body.inputs[0], constant(2.0))
    body.replace(next(iter(body.bindings)).out, doubled)
    body.remove_unused()
    body.check()
    after = to_proto(program)
    onnx.checker.check_model(after, full_check=True)
    assert [n.op_type for n in after.functions[0].node] == ["Constant", "Mul"]
    assert list(after.functions[0].output) == ["y"]
    (y,) = ReferenceEvaluator(after).run(None, {"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(y, [2, 4])


def test_other_domains_and_unknown_schemas() -> None:
    header = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
    model = parse(f"{header} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}")
    block = load(model).main
    with emitting(block):
        out = op.domain("com.microsoft").FusedThing(
            block.inputs[0], 1.0, alpha=2, kind="a", sizes=[1, 2]
        )
    assert out.type is None and out.definition.attrs == {"alpha": 2, "kind": "a", "sizes": (1, 2)}
    assert out.definition.inputs[1].dtype == TensorProto.FLOAT
