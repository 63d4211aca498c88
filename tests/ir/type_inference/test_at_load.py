"""Types on loading: inference is believed before declarations, declarations complete it, and what is known flows on."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # numpy learns the small dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad.ir.load import load
from onnxgrad.ir.type_inference import whole_model
from onnxgrad.ir.types import TensorType, numpy_dtype, same_dim
from onnxgrad.ir.var import Var
from tests.backend_suite import Case, usable
from tests.helpers import parse


def declare(
    model: onnx.ModelProto, name: str, shape: list[int | str | None], dtype: int = TensorProto.FLOAT
) -> None:
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, dtype, shape))


def types(model: onnx.ModelProto) -> dict[str, str]:
    return {v.name: str(v.type or "?") for v in load(model).main.vars()}


def test_where_declaration_and_inference_disagree_neither_is_believed() -> None:
    model = parse("g (float[2,3] x) => (float[7] y) { t = Neg(x) u = Abs(t) y = Exp(u) }")
    declare(model, "t", [2, 5])
    declare(model, "u", ["K"], TensorProto.INT64)
    assert types(model) == {"x": "f32[2,3]", "t": "f32[2,?]", "u": "f32[2,?]", "y": "f32[...]"}


def test_a_declaration_adds_a_rank_and_no_size() -> None:
    graph = "{ r = Reshape(x, s) t = Concat<axis = 0>(r, r) y = Neg(t) }"
    model = parse(f"g (float[2,3] x, int64[k] s) => (float[a,b] y) {graph}")
    declare(model, "r", ["N", 3])
    declare(model, "t", [4, 4])
    found = types(model)
    assert (found["r"], found["t"]) == ("f32[?,?]", "f32[?,?]")
    model = parse("g (float[N,3] x) => (float[a,b] y) { t = Concat<axis = 0>(x, x) y = Neg(t) }")
    declare(model, "t", ["M", 4])
    found = types(model)
    assert (found["t"], found["y"]) == ("f32[2*N,?]", "f32[2*N,?]")


def test_a_rank_that_is_declared_flows_on() -> None:
    text = """g (float[N,6] x, int64[k] s) => (float[P,Q] y) {
      r = Reshape(x, s)
      t = Tanh(r)
      w = Transpose(t)
      sh = Shape(w)
      y = Reshape(t, sh)
    }"""
    model = parse(text)
    assert types(model)["w"] == "f32[...]"
    declare(model, "r", ["N", 6])
    assert {n: t for n, t in types(model).items() if n in "rtwy"} == dict.fromkeys(
        "rtwy", "f32[?,?]"
    )


def test_the_elements_of_a_declared_sequence_have_no_sizes() -> None:
    text = "g (seq(float[2,3]) q, int64 i) => (float[a,b] y) { r = SequenceErase(q, i) y = SequenceAt(r, i) }"
    assert types(parse(text))["y"] == "f32[2,3]"  # the sizes of an input
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[N] x, int64 i) => (float[a,b] y) { q = own.Cut(x) y = SequenceAt(q, i) }"""
    )
    model.graph.value_info.append(
        onnx.helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [2, 3])
    )
    assert types(model)["y"] == "f32[?,?]"


# Declared sizes that the generated inputs agree with, and others would not
LIES = {
    "no row": """g (float[N,4] x) => (int64[2] y) <int64[1] last = {1}, float limit = {1e6}, float[0,4] c> {
      m = ReduceMax<keepdims = 0>(x, last)  b = Greater(m, limit)  c = Compress<axis = 0>(x, b)  y = Shape(c) }""",
    "every row": """g (float[N,4] x) => (float[N,4] y) <int64[1] last = {1}, float limit = {-1e6}, float[N,4] c> {
      m = ReduceMax<keepdims = 0>(x, last)  b = Greater(m, limit)  c = Compress<axis = 0>(x, b)
      s = Shape(x)  y = Expand(c, s) }""",
    "one element": """g (float[N,4] x) => (float[N,4] y)
      <int64[1] last = {1}, int64[1] one = {1}, float limit = {1e6}, float[1] c> {
      m = ReduceMax<keepdims = 0>(x, last)  b = Greater(m, limit)  n = Cast<to = 7>(b)  z = ReduceSum(n)
      e = Add(z, one)  c = ConstantOfShape<value = float[1] {1.0}>(e)  s = Shape(c)  t = Cast<to = 1>(s)
      y = Mul(x, t) }""",
}


@pytest.mark.parametrize("lie", LIES)
def test_no_rewrite_relies_on_a_declared_size(lie: str) -> None:
    """The proof of the last two was right for every input that it made."""
    made = onnxgrad.optimize(parse(LIES[lie], opset=18), verify=False)
    assert {"Shape", "Compress", "ConstantOfShape", "Expand"} & {n.op_type for n in made.graph.node}
    without = parse(LIES[lie], opset=18)
    del without.graph.value_info[:]
    del made.graph.value_info[:]
    assert onnxgrad.optimize(without, verify=False).graph == made.graph


@pytest.mark.parametrize("said", ["?", "", -1])
def test_dimensions_that_say_nothing(said: str | int) -> None:
    model = parse("g (float[4,4] x) => (float[4,4] y) { y = Neg(x) }")
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.Clear()
        if isinstance(said, int):
            dim.dim_value = said
        else:
            dim.dim_param = said
    assert load(model).main.inputs[0].type == TensorType(TensorProto.FLOAT, ("x.0", "x.1"))


def test_nested_blocks_are_typed() -> None:
    model = parse(
        """g (int64 n, bool c, float[N,3] x) => (float[N,3] y) {
          y = Loop (n, c, x) <body = b (int64 i, bool go, float[N,3] v) => (bool on, float[N,3] w) {
            on = Identity(go)
            w = If (go) <then_branch = t () => (float[N,3] p) { q = Neg(x) p = Add(q, v) },
                         else_branch = e () => (float[N,3] p) { s = Shape(v) p = Expand(x, s) }>
          }>
        }"""
    )
    program = load(model)
    found = {v.name: str(v.type or "?") for block in program.blocks() for v in block.vars()}
    assert [found[n] for n in ("w", "q", "s", "on")] == ["f32[N,3]", "f32[N,3]", "i64[2]", "bool[]"]


def test_functions_type_their_calls_and_constants() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g (float[N,4] x) => (float[a,b] y) { t = d.F(x) y = Neg(t) }
        <domain: "d", opset_import: ["" : 20]> F (x) => (y) {
          k = Constant<value = int64[1] {1}>()
          y = ReduceSum(x, k)
        }"""
    )
    program = load(model)
    assert {str(b.out.type) for b in program.main.bindings} == {"f32[N,1]"}
    (body,) = program.functions.values()
    assert str(next(iter(body.bindings)).out.type) == "i64[1]"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("value = int64[1] {1}", "i64[1]"),
        ("value_ints = [3, 4]", "i64[2]"),
        ("value_int = 3", "i64[]"),
        ("value_float = 0.5", "f32[]"),
        ("value_floats = [0.5, 1.0, 2.0]", "f32[3]"),
    ],
)
def test_a_constant_in_a_function_is_what_it_is(value: str, expected: str) -> None:
    model = parse(
        f"""<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g (float[N,4] x) => (float[a,b] y) {{ y, k = d.F(x) }}
        <domain: "d", opset_import: ["" : 20]> F (x) => (y, k) {{ k = Constant<{value}>() y = Neg(x) }}"""
    )
    (body,) = load(model).functions.values()
    assert {v.name: str(v.type) for v in body.vars() if v.type is not None} == {"k": expected}


def test_without_inference_each_binding_is_typed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = "{ s = Shape(x) r = Flatten(x) t = Reshape(r, s) y = Softmax(t) }"
    model = parse(f"g (float[N,4] x) => (float[a,b] y) {graph}")
    expected = types(model)
    monkeypatch.setattr(whole_model, "infer_model", lambda *_: None)
    assert types(model) == expected == {**dict.fromkeys("xrty", "f32[N,4]"), "s": "i64[2]"}


def wrong(case: Case) -> str:
    """Where the types found without any declaration do not fit the results that the case expects; '' if nowhere."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    block = load(model).main
    sizes: dict[str, set[int]] = {}
    pairs = [(v, case.inputs.get(v.name)) for v in block.inputs] + list(
        zip(block.outputs, case.outputs, strict=True)
    )
    for var, value in pairs:
        comparable = (
            isinstance(value, np.ndarray)
            and isinstance(var.type, TensorType)
            and value.dtype.kind not in "OU"
        )
        if comparable and not _fits(var, value, sizes):
            return f"{var!r} is {value.dtype}{list(value.shape)}"
    return ""


def _fits(
    var: Var, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]], sizes: dict[str, set[int]]
) -> bool:
    if numpy_dtype(var.dtype) != value.dtype or (
        var.shape is not None and len(var.shape) != value.ndim
    ):
        return False
    for d, real in zip(var.shape or (), value.shape):
        if isinstance(d, str):
            sizes.setdefault(d, set()).add(real)
        if (isinstance(d, int) and d != real) or (isinstance(d, str) and len(sizes[d]) > 1):
            return False
    return True


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_types_fit_the_results_of_the_backend_suite(step: int) -> None:
    assert {c.name: w for c in list(usable())[::step] if (w := wrong(c))} == {}


# ---- symbols -----------------------------------------------------------------------------------------------------

NONZERO = "n1 = NonZero(x) n2 = NonZero(y) s = Shape(n2)"
SYMBOLS = {
    "an output's": f"g (float[A] x, float[A] y) => (int64[1,unk__0] o) {{ {NONZERO} o = Expand(n1, s) }}",
    "a value's": f"g (float[A] x, float[A] y) => (int64[1,K] o) <int64[1,unk__0] n2> {{ {NONZERO} o = Expand(n1, s) }}",
    "an input's": f"g (float[unk__0] x, float[unk__1] y) => (int64[1,K] o) {{ {NONZERO} o = Expand(n1, s) }}",
    "a branch's": f"""g (float[A] x, float[A] y, bool c) => (int64[1,K] o) {{ {NONZERO}
        o = If (c) <then_branch = t () => (int64[1,unk__0] p) {{ p = Expand(n1, s) }},
                    else_branch = e () => (int64[1,unk__1] q) {{ q = Expand(n2, s) }}> }}""",
}


@pytest.mark.parametrize("case", SYMBOLS)
def test_symbols_that_onnx_makes_up_are_none_that_the_file_declares(case: str) -> None:
    """And with that the Expand, which changes the size, stays."""
    program = load(parse(SYMBOLS[case]))
    x, y = program.main.inputs[:2]
    values = {v.name: v for v in program.main.vars()}
    first, second = (values[n].shape or () for n in ("n1", "n2"))
    assert not same_dim(first[1], second[1])
    assert not same_dim(first[1], (x.shape or ())[0]) and not same_dim(
        second[1], (y.shape or ())[0]
    )
    assert "Expand" in str(onnxgrad.optimize(program, verify=False).main)


def test_two_calls_of_a_function_do_not_share_its_sizes() -> None:
    """What the graphs of a function body call K is one size per call; what onnx makes up is told apart anyway."""
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g (int64 n, bool c, float[A] x, float[B] y) => (float[a,b] p, float[e,f] q) {
          p = d.F(n, c, x) q = d.F(n, c, y) }
        <domain: "d", opset_import: ["" : 20]> F (n, c, v) => (w) {
          l, w = Loop (n, c, v) <body = b (int64 i, bool go, float[K] s) => (bool on, float[K] t, float[K] r) {
            on = Identity(go) t = Neg(s) r = Neg(v) }> }"""
    )
    p, q = load(model).main.outputs
    assert not same_dim((p.shape or (None, None))[1], (q.shape or (None, None))[1])
    (body,) = load(model).functions.values()
    loop = next(iter(body.bindings)).blocks["body"]
    assert [str(v.type) for v in loop.inputs] == ["i64[]", "bool[]", "f32[?]"]


@pytest.mark.parametrize(
    "made",
    [
        "s = SplitToSequence <axis = 0> (x, k)",
        "s = SequenceConstruct (x, z)",
        "t = SplitToSequence <axis = 0> (x, k) s = SequenceMap (t) <body = b (float[M,3] e) => (float[M,3] f) { f = Neg (e) }>",
    ],
)
def test_elements_of_a_sequence_do_not_share_a_size(made: str) -> None:
    model = parse(f"""g (float[N,3] x, float[K,3] z, int64[3] k, int64 i, int64 j) => (float[A,3] a, float[B,3] b)
      {{ {made} a = SequenceAt (s, i) b = SequenceAt (s, j) }}""")
    assert [str(v.type) for v in load(model).main.outputs] == ["f32[?,3]", "f32[?,3]"]


def test_an_if_learns_from_its_branches_what_a_declaration_told_them() -> None:
    """onnx says nothing about the shape of a Loop's state, so that only the output's declaration gives `s` its rank."""
    model = parse(
        """g (bool c, float[4] x, int64 n) => (float[4] s, float[p] y) {
            s = Loop (n, , x) <body = b (int64 i, bool go, float[4] v) => (bool on, float[4] w) {
                on = Identity(go) w = Concat<axis = 0>(v, v) }>
            k = If (c) <then_branch = t () => (float a) { a = Tanh(s) }, else_branch = e () => (float b) { b = Sin(s) }>
            y = Relu(k) }"""
    )
    for nested in (a.g for a in model.graph.node[1].attribute):
        nested.output[0].type.tensor_type.ClearField("shape")
    k = next(v for v in load(model).main.vars() if v.name == "k")
    assert str(k.type) == "f32[?]"


ML = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>"""


@pytest.mark.parametrize(
    ("node", "y"),
    [
        ("Scaler <offset = [0.0], scale = [2.0]>", "f32[N,4]"),
        ('Normalizer <norm = "L2">', "f32[N,4]"),
        (
            "LinearRegressor <coefficients = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0], targets = 2>",
            "f32[N,2]",
        ),
    ],
)
def test_classical_machine_learning(node: str, y: str) -> None:
    """onnx infers their dtype, and no shape."""
    model = parse(
        f"{ML} g (float[N,4] x) => (float[a,b] z) {{ y = ai.onnx.ml.{node} (x) z = Tanh(y) }}"
    )
    assert types(model)["y"] == y


@pytest.mark.parametrize(("node", "y"), [("Squeeze", "f32[N,4]"), ("Unsqueeze", "f32[N,4,1,1]")])
def test_axes_behind_an_identity(node: str, y: str) -> None:
    """As paddle2onnx writes them: onnx knows the axes of a constant only."""
    model = parse(
        f"""g (float[N,4,1] x) => (float[a,b] z) {{
            c = Constant <value_ints = [-1]> ()  axes = Identity(c)  y = {node}(x, axes)  z = Tanh(y) }}"""
    )
    assert types(model)["y"] == y
