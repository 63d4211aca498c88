"""Types of emitted bindings against what really comes out, at two sizes per symbol, and against onnx."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.type_inference import closed_forms, per_binding, shape_arithmetic
from onnxgrad.ir.type_inference.per_binding import retype
from onnxgrad.ir.type_inference.symbolic_shapes import REDUCTIONS
from onnxgrad.ir.types import Shape, TensorType, TypeMismatch, broadcast_shapes
from onnxgrad.ir.var import Var
from tests.helpers import parse

INPUTS = "float[N,4,M] x, int64[N] i, float[4,P] w, float[N,1,M] z, bool[N,1,1] c"

# what is emitted from those inputs, and the type that it must have
CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (lambda x, i, w, z, c: x + z, "f32[N,4,M]"),
    "where": (lambda x, i, w, z, c: op.Where(c, x, 0.0), "f32[N,4,M]"),
    "compare": (lambda x, i, w, z, c: op.Greater(x, z), "bool[N,4,M]"),
    "transpose": (lambda x, i, w, z, c: op.Transpose(x), "f32[M,4,N]"),
    "matmul": (lambda x, i, w, z, c: x.mT @ w, "f32[N,M,P]"),
    "cast": (lambda x, i, w, z, c: op.Cast(x, to=TensorProto.DOUBLE), "f64[N,4,M]"),
    "concat": (lambda x, i, w, z, c: op.Concat(x, x, axis=-2), "f32[N,8,M]"),
    "concat_symbol": (lambda x, i, w, z, c: op.Concat(x, z, axis=1), "f32[N,5,M]"),
    "concat_open": (lambda x, i, w, z, c: op.Concat(x, x, axis=0), "f32[2*N,4,M]"),
    "shape": (lambda x, i, w, z, c: op.Shape(x, start=1, end=-1), "i64[1]"),
    "reduce": (lambda x, i, w, z, c: op.ReduceSum(x, [1], keepdims=0), "f32[N,M]"),
    "reduce_all": (lambda x, i, w, z, c: op.ReduceMax(x, keepdims=0), "f32[]"),
    "reshape": (
        lambda x, i, w, z, c: op.Reshape(x, [0, 2, 2, 0]),
        None,
    ),  # 0 copies an axis that is not there
    "reshape_kept": (lambda x, i, w, z, c: op.Reshape(x, [0, 2, 2, -1]), "f32[N,2,2,M]"),
    "reshape_product": (lambda x, i, w, z, c: op.Reshape(x, [-1, 4]), "f32[M*N,4]"),
    "reshape_shape": (
        lambda x, i, w, z, c: op.Reshape(x, op.Concat(op.Shape(x, end=1), [-1], axis=0)),
        "f32[N,4*M]",
    ),
    "reshape_partly": (  # one element tells the other sizes: -1 and 1
        lambda x, i, w, z, c: op.Reshape(
            x,
            op.Concat(
                op.Shape(x, end=1),
                op.Cast(op.Squeeze(op.ReduceMax(w), [0]), to=TensorProto.INT64) * [-1, 1],
                axis=0,
            ),
        ),
        "f32[N,?,?]",
    ),
    "reshape_back": (lambda x, i, w, z, c: op.Reshape(op.Flatten(x), op.Shape(x)), "f32[N,4,M]"),
    "expand": (lambda x, i, w, z, c: op.Expand(z, op.Shape(x)), "f32[N,4,M]"),
    "tile": (lambda x, i, w, z, c: op.Tile(z, [1, 4, 1]), "f32[N,4,M]"),
    "constant_of_shape": (
        lambda x, i, w, z, c: op.ConstantOfShape(op.Shape(x, start=1)),
        "f32[4,M]",
    ),
    "range": (lambda x, i, w, z, c: op.Range(0, op.Squeeze(op.Shape(x, end=1)), 1), "i64[N]"),
    "range_from": (
        lambda x, i, w, z, c: op.Range(1, op.Squeeze(op.Shape(x, end=1)), 1),
        "i64[max(N - 1, 0)]",
    ),
    "slice": (lambda x, i, w, z, c: op.Slice(x, [0], [2], [1]), "f32[N,2,M]"),
    "slice_symbol": (lambda x, i, w, z, c: op.Slice(x, [0], [1], [0]), "f32[min(N, 1),4,M]"),
    "slice_back": (lambda x, i, w, z, c: op.Slice(x, [-3], [(1 << 63) - 1], [1]), "f32[N,3,M]"),
    "slice_back_symbol": (
        lambda x, i, w, z, c: op.Slice(x, [-2], [(1 << 63) - 1], [0]),
        "f32[max(N - max(N - 2, 0), 0),4,M]",
    ),
    "slice_whole": (lambda x, i, w, z, c: op.Slice(x, [0], [(1 << 63) - 1], [0]), "f32[N,4,M]"),
    "slice_run_time": (
        lambda x, i, w, z, c: op.Slice(x, [0], op.Shape(w, start=1), [-1]),
        "f32[N,4,min(M, P)]",
    ),
    "split": (lambda x, i, w, z, c: op.Split(x, [3, 1], axis=1, outputs=2)[0], "f32[N,3,M]"),
    "split_evenly": (lambda x, i, w, z, c: op.Split(x, axis=1, outputs=2)[1], "f32[N,2,M]"),
    "gather": (lambda x, i, w, z, c: op.Gather(x, i, axis=1), "f32[N,N,M]"),
    "gather_one": (lambda x, i, w, z, c: op.Gather(x, 0, axis=1), "f32[N,M]"),
    "pad": (lambda x, i, w, z, c: op.Pad(x, [0, 1, 0, 0, 1, 0]), "f32[N,6,M]"),
    "pad_axes": (lambda x, i, w, z, c: op.Pad(x, [1, 1], None, [1]), "f32[N,6,M]"),
    "squeeze": (lambda x, i, w, z, c: op.Squeeze(z, [1]), "f32[N,M]"),
    "unsqueeze": (lambda x, i, w, z, c: op.Unsqueeze(x, [0, 4]), "f32[1,N,4,M,1]"),
    "scatter": (lambda x, i, w, z, c: op.ScatterND(x, op.Reshape(i * 0, [-1, 1]), x), "f32[N,4,M]"),
    "einsum": (lambda x, i, w, z, c: op.Einsum(x, w, equation="ncm,cp->nmp"), "f32[N,M,P]"),
    "top_k": (lambda x, i, w, z, c: op.TopK(x, 2, axis=1, outputs=2)[1], "i64[N,2,M]"),
    "transform": (
        lambda x, i, w, z, c: op.DFT(
            op.Unsqueeze(x, [3]), op.Squeeze(op.Shape(x, start=1, end=2)), 1, onesided=1
        ),
        "f32[N,3,M,2]",
    ),
    "transform_back": (
        lambda x, i, w, z, c: op.DFT(op.Unsqueeze(x, [3]), None, -3, inverse=1),
        "f32[N,4,M,2]",
    ),
    "arithmetic": (
        lambda x, i, w, z, c: op.Expand(
            0.0, op.Concat(op.Shape(x, end=1) * 1 + 0, op.Shape(w, end=1) * 2, axis=0)
        ),
        "f32[N,8]",
    ),
    "through_float": (  # 4 / 3 * 3 is 4 in floats and 3 in integers: nothing may be claimed
        lambda x, i, w, z, c: op.Expand(
            0.0,
            op.Cast(
                op.Cast(op.Shape(w, end=1), to=TensorProto.FLOAT) / 3.0 * 3.0 + 0.5,
                to=TensorProto.INT64,
            ),
        ),
        "f32[?]",
    ),
}


def feeds(n: int, m: int, p: int) -> dict[str, Any]:
    return {
        "x": np.ones((n, 4, m), np.float32),
        "i": np.zeros(n, np.int64),
        "w": np.ones((4, p), np.float32),
        "z": np.ones((n, 1, m), np.float32),
        "c": np.ones((n, 1, 1), np.bool_),
    }


def fits(shape: Shape | None, real: tuple[int, ...], sizes: dict[str, int]) -> bool:
    if shape is None:
        return True
    known = [
        eval(d, {"max": max, "min": min, "__builtins__": {}}, sizes) if isinstance(d, str) else d
        for d in shape
    ]
    return len(known) == len(real) and all(k is None or k == r for k, r in zip(known, real))


@pytest.mark.parametrize("name", CASES)
def test_types_are_right_and_as_good_as_expected(name: str) -> None:
    make, expected = CASES[name]
    block = load(parse(f"g ({INPUTS}) => (float[N,4,M] same) {{ same = Identity(x) }}")).main
    with emitting(block):
        if expected is None:
            with pytest.raises(InternalError):
                make(*block.inputs)
            return
        out: Var = make(*block.inputs)
    assert str(out.type) == expected
    block.add_output(out)
    model = to_proto(block.program)
    inferred = (
        onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output[1].type.tensor_type
    )
    assert inferred.elem_type == out.dtype
    for ours, theirs in zip(out.shape or (), inferred.shape.dim):
        assert not theirs.HasField("dim_value") or ours == theirs.dim_value
    for n, m, p in ((2, 3, 5), (1, 1, 1)):
        real = ReferenceEvaluator(model).run(None, feeds(n, m, p))[1]
        assert fits(out.shape, real.shape, {"N": n, "M": m, "P": p}), real.shape


DIMS = st.sampled_from([1, 3, "N", "M", None])


@given(st.lists(st.lists(DIMS, max_size=4).map(tuple), min_size=1, max_size=3))
def test_broadcast_claims_only_what_holds(shapes: list[Shape]) -> None:
    claimed = broadcast_shapes(shapes)
    for sizes in ({"N": 3, "M": 3}, {"N": 1, "M": 3}, {"N": 3, "M": 1}, {"N": 2, "M": 2}):
        real = [
            tuple(sizes[d] if isinstance(d, str) else 3 if d is None else d for d in s)
            for s in shapes
        ]
        try:
            result = np.broadcast_shapes(*real)
        except ValueError:
            continue
        assert fits(claimed, result, sizes)


LOGICAL = ("Not", "And", "Or", "Xor")
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Transpose": {"perm": [1, 0]},
    "Cast": {"to": 7},
    "Concat": {"axis": 1},
}


# tried with operands of their own below
OWN = {"Conv", "Expand", "Unsqueeze"}
QUICK = sorted(closed_forms.CLOSED_FORMS.keys() - OWN)
VERSIONS = [
    (name, opset)
    for name in QUICK
    for opset in (7, 13, 20)
    if name != "Reshape" and attributes.schema(name, opset, "")
]


@pytest.mark.parametrize(("name", "opset"), VERSIONS)
def test_closed_forms_agree_with_onnx(name: str, opset: int) -> None:
    schema = attributes.schema(name, opset, "")
    assert schema is not None
    kind = "bool" if name in LOGICAL else "int64" if name == "Equal" else "float"
    first = f"{'bool' if name == 'Where' else kind}[3,3] a"
    graph = f"g ({first}, {kind}[3,3] b, {kind}[3,3] d) => (bool[3,3] y) {{ y = Cast<to=9>(a) }}"
    block = load(parse(graph, opset=opset)).main
    with emitting(block) as at:
        getattr(op, name)(
            *block.inputs[: 2 if name == "Concat" else schema.min_input], **ATTRIBUTES.get(name, {})
        )
    (binding,) = at.emitted
    (theirs,) = per_binding._onnx_types(schema, binding.node, binding.inputs, block)
    assert isinstance(theirs, TensorType)
    operands = [v for v in binding.inputs if v is not None]
    answer = closed_forms.CLOSED_FORMS[name](binding.node, operands)
    # those over all axes are onnx's, which is slow
    assert answer is not None or name.startswith("Reduce")
    assert binding.out.dtype == theirs.dtype
    assert (
        theirs.shape is None or binding.out.shape == theirs.shape
    )  # onnx says little about old versions


@pytest.mark.parametrize("name", QUICK)
def test_closed_forms_of_unknown_shapes_agree_with_onnx(name: str) -> None:
    schema = attributes.schema(name, 24, "")
    assert schema is not None
    kind = "bool" if name in LOGICAL else "int64" if name == "Equal" else "float"
    first = f"{'bool' if name == 'Where' else kind}[3,3] a"
    second = "int64[2]" if name == "Reshape" else f"{kind}[3,3]"
    block = load(
        parse(
            f"g ({first}, {second} b, {kind}[3,3] d) => (bool[3,3] y) {{ y = Cast<to=9>(a) }}",
            opset=24,
        )
    ).main
    for v in block.inputs:
        v.type = TensorType(v.dtype, None)
    with emitting(block) as at:
        getattr(op, name)(
            *block.inputs[: 2 if name == "Concat" else schema.min_input], **ATTRIBUTES.get(name, {})
        )
    (binding,) = at.emitted
    assert [binding.out.type] == per_binding._onnx_types(
        schema, binding.node, binding.inputs, block
    )


@pytest.mark.parametrize("name", ["ReduceSum", "ReduceMean", "Reshape"])
def test_closed_forms_with_integers_of_unknown_shapes(name: str) -> None:
    block = load(parse("g (float[3,2,4] a) => (float[3,2,4] y) { y = Neg (a) }", opset=20)).main
    block.inputs[0].type = TensorType(TensorProto.FLOAT, None)
    with emitting(block):
        found = getattr(op, name)(block.inputs[0], np.array([1], np.int64))
    assert found.type == TensorType(TensorProto.FLOAT, (1,) if name == "Reshape" else None)


WITH_INTEGERS: list[tuple[str, list[int], dict[str, Any]]] = [
    ("Reshape", [4, 6], {}),
    ("Reshape", [0, -1], {}),
    ("Reshape", [-1], {"allowzero": 1}),
    ("Reshape", [3, 0, 2, 2], {}),
    ("Reshape", [1, 24], {"allowzero": 1}),
    ("ReduceSum", [0, -1], {"keepdims": 0}),
    ("ReduceSum", [], {}),
    ("ReduceSum", [], {"noop_with_empty_axes": 1}),
    ("ReduceMean", [-2], {}),
    ("ReduceMean", [2, 0, 1], {"keepdims": 0}),
]


@pytest.mark.parametrize(("name", "ints", "options"), WITH_INTEGERS)
def test_closed_forms_with_integers_agree_with_onnx(
    name: str, ints: list[int], options: dict[str, Any]
) -> None:
    block = load(parse("g (float[3,2,4] a) => (float[3,2,4] y) { y = Neg (a) }", opset=20)).main
    with emitting(block) as at:
        found = getattr(op, name)(block.inputs[0], np.array(ints, np.int64), **options)
    schema, b = attributes.schema(name, 20, ""), at.emitted[-1]
    assert schema is not None
    assert [found.type] == per_binding._onnx_types(schema, b.node, b.inputs, block)
    answer = closed_forms.CLOSED_FORMS[name](b.node, [v for v in b.inputs if v is not None])
    assert answer == (found.type if ints else None)


COMPUTED: list[tuple[str, list[int], Shape | None]] = [
    *((f"{name}<keepdims=0>(x, i)", [-1, 0], (2,)) for name in REDUCTIONS),
    *((f"{name}(x, i)", [1], (3, 1, 4)) for name in REDUCTIONS),
    ("ReduceSum(x, i)", [0, -3], None),  # one axis twice
    ("ReduceMax(x, i)", [3], None),
    ("Expand(x, i)", [5, 1, 2, 1], (5, 3, 2, 4)),
    ("Reshape(x, i)", [4, -1], (4, 6)),
    ("Slice(x, i, z, i)", [0], (0, 2, 4)),
    ("Slice(x, z, i, z)", [2], (2, 2, 4)),
]


@pytest.mark.parametrize(("call", "numbers", "shape"), COMPUTED)
def test_sizes_and_axes_that_the_file_computes(
    call: str, numbers: list[int], shape: Shape | None
) -> None:
    text = f"""g (float[3,2,4] x) => (int64[K] r)
        <int64[{len(numbers)}] c = {{{", ".join(map(str, numbers))}}}, int64[1] z = {{0}}>
        {{ s = Shape(c) i = Reshape(c, s) y = {call} r = Shape(y) }}"""
    (found,) = [v.type for v in load(parse(text, opset=20)).main.vars() if v.name == "y"]
    assert isinstance(found, TensorType) and found.dtype == TensorProto.FLOAT
    assert found.shape == shape or (shape is None and None in (found.shape or (None,)))


CONVS: list[tuple[str, str, dict[str, Any]]] = [
    ("2,3,9,8", "4,3,3,2", {}),
    ("N,3,9,8", "4,3,3,3", {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [2, 1]}),
    ("N,4,9", "6,2,3", {"group": 2, "kernel_shape": [3]}),
    ("1,2,5,5,5", "3,2,1,2,3", {"strides": [1, 2, 2]}),
    ("2,3,9,8", "4,3,3,2", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("2,3,W,8", "4,3,3,2", {}),
    ("2,C,9,8", "4,3,3,2", {}),
    ("2,3,9,8", "M,3,3,2", {}),
    ("2,3,2,8", "4,3,3,2", {}),  # no window fits
    ("2,3,9,8", "4,2,3,2", {}),  # not these channels
    ("2,3,9,8", "4,3,3,2", {"kernel_shape": [3, 3]}),
    ("2,3,9,8", "4,3,3,2", {"strides": [2]}),
]


@pytest.mark.parametrize(("x", "w", "options"), CONVS)
def test_conv_agrees_with_onnx(x: str, w: str, options: dict[str, Any]) -> None:
    block = load(parse(f"g (float[{x}] x, float[{w}] w) => (float[1] y) {{ y = Neg (w) }}")).main
    node = onnx.helper.make_node("Conv", ["x", "w"], ["c"], **options)
    schema = attributes.schema("Conv", 20, "")
    assert schema is not None
    try:
        theirs = per_binding._onnx_types(schema, node, block.inputs, block)
    except TypeMismatch:
        assert closed_forms.CLOSED_FORMS["Conv"](node, block.inputs) is None
    else:
        ((ours,),) = [per_binding.result_types(schema, node, block.inputs, block)]
        ((known,),) = [theirs]
        assert isinstance(ours, TensorType) and isinstance(known, TensorType)
        pairs = zip(ours.shape or (), known.shape or (), strict=True)
        # where onnx says nothing, ours may be an expression
        assert all(a == b or (b is None and isinstance(a, str)) for a, b in pairs)


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("shape", ["3,4", "N,4", "?,4", ""])
@pytest.mark.parametrize("axes", [[0], [-1, 1], [2, 0], [1, 1], [9]])
def test_unsqueeze_agrees_with_onnx(opset: int, shape: str, axes: list[int]) -> None:
    block = load(parse(f"g (float[{shape}] x) => (float[1] y) {{ y = Neg (x) }}", opset=opset)).main
    schema = attributes.schema("Unsqueeze", opset, "")
    assert schema is not None
    with emitting(block) as at:
        try:
            op.Unsqueeze(block.inputs[0], np.array(axes, np.int64))
        except InternalError:  # axes that do not fit are onnx's to refuse
            assert axes in ([1, 1], [9]) or len(axes) + bool(shape) * 2 <= max(axes)
            return
    (b,) = at.emitted
    assert [b.out.type] == per_binding._onnx_types(schema, b.node, b.inputs, block)


@pytest.mark.parametrize("shape", ["3,1", "N,1", "1"])
@pytest.mark.parametrize("sizes", [[3, 4], [1, 1], [2, 3, 5], [0], []])
def test_expand_agrees_with_onnx(shape: str, sizes: list[int]) -> None:
    block = load(parse(f"g (float[{shape}] x) => (float[1] y) {{ y = Neg (x) }}")).main
    schema = attributes.schema("Expand", 20, "")
    assert schema is not None
    with emitting(block) as at:
        op.Expand(block.inputs[0], np.array(sizes, np.int64))
    (b,) = at.emitted
    quick = closed_forms.CLOSED_FORMS["Expand"](b.node, [v for v in b.inputs if v is not None])
    assert quick is None or [quick] == per_binding._onnx_types(schema, b.node, b.inputs, block)


@pytest.mark.parametrize("sizes", [[-2, -12], [-2, 12], [-1, -1], [-1, 5]])
def test_a_reshape_to_impossible_sizes_is_refused(sizes: list[int]) -> None:
    block = load(parse("g (float[3,2,4] a) => (float[3,2,4] y) { y = Neg (a) }", opset=20)).main
    with emitting(block), pytest.raises(InternalError, match="does not type"):
        op.Reshape(block.inputs[0], np.array(sizes, np.int64))


@pytest.mark.parametrize(("left", "right"), [("float", "double"), ("double", "float")])
def test_a_product_of_two_dtypes_is_refused(left: str, right: str) -> None:
    block = load(
        parse(f"g ({left}[3,2] a, {right}[2,5] b) => ({left}[3,2] y) {{ y = Neg (a) }}", opset=20)
    ).main
    with emitting(block), pytest.raises(InternalError):
        op.MatMul(*block.inputs)


@pytest.mark.parametrize("options", [{}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1}])
def test_gemm_agrees_with_onnx(options: dict[str, int]) -> None:
    block = load(
        parse("g (float[3,2] a, float[2,5] b) => (float[3,2] y) { y = Neg (a) }", opset=20)
    ).main
    a, b = block.inputs
    with emitting(block):
        a = op.Transpose(a) if options.get("transA") else a
        b = op.Transpose(b) if options.get("transB") else b
        assert op.Gemm(a, b, **options).type == TensorType(TensorProto.FLOAT, (3, 5))
        bias = np.zeros(5, np.float32)
        assert op.Gemm(a, b, bias, **options).type == TensorType(TensorProto.FLOAT, (3, 5))
        with pytest.raises(InternalError):
            op.Gemm(a, a, transA=options.get("transA", 0), transB=options.get("transA", 0))


def types(nodes: str) -> dict[str, str]:
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> m (bool c, int64 n, float16[5,2] x, float[2] h) => (float16[] out) '
        f"{{ {nodes} out = Cast <to = 10> (n) }}"
    )
    block = load(onnx.parser.parse_model(text)).main
    for b in block.walk():  # as in the body of a function
        for v in (*b.outputs, *(v for nested in b.blocks.values() for v in nested.inputs)):
            if v is not None:
                v.type = None
    retype(block)
    return {v.name: str(v.type) for b in block.walk() for v in b.outputs if v is not None}


def test_a_binding_that_cannot_be_typed_again_stays_unknown_and_others_are_typed() -> None:
    # onnx refuses columns of different lengths; the nodes beside it have types all the same
    found = types("bad = Concat<axis = 1>(x, h) good = Relu(h) last = Neg(bad)")
    assert (found["bad"], found["good"], found["last"]) == ("None", "f32[2]", "None")


def test_if_has_what_its_branches_agree_on() -> None:
    found = types(
        "y = If (c) <then_branch = t () => (p) { p = Identity (x) }, else_branch = e () => (q) "
        "{ q = Concat <axis = 0> (x, x) }>  z = Relu (y)"
    )
    assert found["y"] == "f16[?,2]" and found["z"] == found["y"]


def test_scan_types_its_body_and_its_results() -> None:
    found = types(
        "last, all = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o) "
        "{ f = Cast <to = 1> (e) t = Add (s, f) o = CastLike (t, e) }> (h, x)"
    )
    assert found["f"] == "f32[2]" and found["last"] == "f32[2]" and found["all"] == "f16[5,2]"


def test_scan_over_a_value_of_unknown_shape_keeps_its_dtype() -> None:
    found = types(
        "k = Cast <to = 7> (h) r = Reshape (x, k) last, all = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o) "
        "{ t = Identity (s) o = Neg (e) }> (h, r)"
    )
    assert found["r"] == "f16[?,?]" and found["o"] == "f16[?]"
    found = types(
        "y = If (c) <then_branch = t () => (p) { p = Identity (x) }, else_branch = e () => (q) { q = Cast <to = 10> (h) }> "
        "last, all = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o) { t = Identity (s) o = Neg (e) }> (h, y)"
    )
    assert found["y"] == found["o"] == found["all"] == "f16[...]"


def test_loop_keeps_the_dtype_of_a_state() -> None:
    found = types(
        "last, all = Loop <body = b (i, go, s) => (go_on, t, o) "
        "{ go_on = Identity (go) t = Concat <axis = 0> (s, s) o = Cast <to = 10> (h) }> (n, c, h)"
    )
    assert found["last"].startswith("f32[") and found["all"] == "f16[?,2]"


@pytest.mark.parametrize(
    ("axis", "expected"), [(0, "f16[5,2]"), (1, "f16[2,5]"), (-1, "f16[2,5]"), (-2, "f16[5,2]")]
)
def test_scan_stacks_its_results_along_their_axis(axis: int, expected: str) -> None:
    """An axis below zero counts from the end of the result, which has one axis more than what the body gives."""
    found = types(
        f"last, all = Scan <num_scan_inputs = 1, scan_output_axes = [{axis}], body = b (s, e) => (t, o) "
        "{ t = Identity (s) o = Neg (e) }> (h, x)"
    )
    assert found["all"] == expected


@pytest.mark.parametrize(
    ("name", "domain"),
    [("SequenceMap", ""), *((name, "other") for name in ("SequenceMap", "If", "Loop", "Scan"))],
)
def test_only_control_flow_has_the_types_of_its_bodies(name: str, domain: str) -> None:
    """Another operator may have a body too, and one of another domain a name of ONNX's."""
    body = helper.make_graph(
        [helper.make_node("Neg", ["e"], ["f"])],
        "b",
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("f", TensorProto.FLOAT, [2])],
    )
    model = parse("g (seq(float[2]) x) => (seq(float[2]) y) { y = Identity (x) }")
    node = helper.make_node(name, ["x"], ["y"], domain=domain, body=body)
    model.graph.node[0].CopyFrom(node)
    if domain:
        model.opset_import.add(domain=domain, version=1)
    block = load(model).main
    retype(block)
    assert per_binding.types_of_bodies(next(iter(block.walk()))) == []
    assert str(block.outputs[0].type) == str(block.inputs[0].type)


SIZES = (-3, -1, 0, 1, 2, 7)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_arithmetic_of_sizes(name: str) -> None:
    """Of numbers as ONNX computes; of symbols what `tests/ir/test_sizes.py` holds against numbers."""
    ours: dict[str, Callable[[Any, Any], Any]] = {
        "Add": algebra.add, "Sub": algebra.subtract, "Mul": algebra.multiply, "Max": algebra.maximum,
        "Min": algebra.minimum, "Div": algebra.divide,
    }  # fmt: skip
    of: dict[str, Callable[[Any, Any], Any]] = {
        "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Max": max, "Min": min,
        # ONNX rounds towards 0
        "Div": lambda p, q: None if not q else p // q if p % q == 0 or (q > 0 and p >= 0) else None,
    }  # fmt: skip
    for p in SIZES:
        for q in SIZES:
            assert ours[name](p, q) == of[name](p, q)
        right = p == (1 if name in ("Mul", "Div") else 0) and name not in ("Max", "Min")
        assert (ours[name]("N", p) == "N") == (right or (name == "Max" and p <= 0))
    assert (ours[name]("N", "N") == "N") == (name in ("Max", "Min"))
    assert ours[name]("N", "M") not in ("N", "M")


@pytest.mark.parametrize("more", [-1, 0])
def test_sizes_are_followed_so_far_and_no_further(more: int) -> None:
    block = load(parse("g (float[N,4] x) => (float[1] y) { y = Neg (x) }")).main
    with emitting(block):
        v = op.Shape(block.inputs[0])
        for _ in range(shape_arithmetic._DEPTH + more):
            v = op.Identity(v)
    assert shape_arithmetic.sizes(v) == (("N", 4) if more < 0 else (None, None))
