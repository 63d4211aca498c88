"""onnxgrad/laws/bodies: each operator with a body, lowered by `inline` and mapped by `vmap`. Its gradient is tested beside the body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import body, op, open_batch, optimize, temporary_rules
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.laws.bodies.table import BODIES
from onnxgrad.passes.inline import Inline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.transform.vmap import map_inputs
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal, op_model, positive
from tests.laws.bodies import test_attention as attentions
from tests.laws.bodies import test_experts as experts
from tests.laws.bodies import test_fused as fused
from tests.laws.bodies import test_linear_attention as linear
from tests.laws.bodies.test_table import CHECKED, DOMAINS, FOR_GPUS

Made = tuple[onnx.ModelProto, dict[str, Any]]


def of_node(node: onnx.NodeProto, feeds: dict[str, Any]) -> Made:
    given = {n: v for n, v in feeds.items() if n in node.input}
    outputs = [n for n in node.output if n]
    return op_model(node, given, outputs=outputs, domains=DOMAINS), given


FUSED = [
    "y = Gelu (x)", "y = FastGelu (x, b)", "y = QuickGelu (x)", "y = BiasGelu (x, b)",
    "y = FusedMatMul <transB = 1, alpha = 0.5> (x, w)", "y = FusedGemm <activation = \"Relu\"> (m, v, c)",
    "y = TransposeMatMul <transB = 1> (x, w)",
    "y = FusedConv <activation = \"Tanh\", pads = [1, 0, 1, 0]> (i, k)",
    "y, , , t = SkipLayerNormalization (x, s, p, b, b)", "y, , , t = SkipSimplifiedLayerNormalization (x, s, p, b)",
    "y = LayerNormalization (x, p, b)", "y = SimplifiedLayerNormalization (x, p)",
]  # fmt: skip
OPERANDS = {
    "x": normal(2, 3, 4), "s": normal(2, 3, 4, seed=1), "p": positive(4), "b": normal(4, seed=2), "w": normal(5, 4),
    "m": normal(3, 4), "v": normal(4, 5), "c": normal(5), "i": normal(2, 2, 5, 4), "k": normal(3, 2, 3, 2),
}  # fmt: skip


def others() -> Iterator[Made]:
    """Calls of every operator that the table of cases lacks."""
    for text in FUSED:
        graph = onnx.parser.parse_graph(
            f"g () => () {{ {text} }}".replace("= ", "= com.microsoft.", 1)
        )
        yield of_node(graph.node[0], OPERANDS)
    text = "y, m, t = com.microsoft.EmbedLayerNormalization (ids, seg, word, pos, part, w, b)"
    yield of_node(
        onnx.parser.parse_graph(f"g () => () {{ {text} }}").node[0], {**fused.IDS, **fused.TABLES}
    )
    for bits, zero in ((4, "packed"), (8, ""), (2, "float")):
        feeds = fused.given(bits, 48, zero)
        text = fused.node(bits, 48, ", ".join(feeds))
        yield of_node(onnx.parser.parse_graph(f"g () => () {{ {text} }}").node[0], feeds)
    for case in attentions.ATTENTION:
        yield of_node(*attentions.attention(*case))
    for case in attentions.MULTI:
        yield of_node(*attentions.multi(*case, ["y"]))
    for past, attributes, more in attentions.DECODERS:
        feeds = {
            **attentions.STEP,
            **(attentions.CROSS if past is None else attentions.CACHES),
            **more,
        }
        if past is not None:
            feeds["n"] = np.array([past], np.int32)
            attributes += ", past_present_share_buffer = 1"
        names = [name if name in feeds else "" for name in attentions.OF_STEP]
        outputs = ["y"] if past is None else ["y", "ck", "cv"]
        yield of_node(
            attentions.node("DecoderMaskedMultiHeadAttention", names, outputs, attributes), feeds
        )
    for attributes, more in experts.CASES:
        yield of_node(*experts.moe(attributes, more))
    for rule, n, m, keys, more in linear.CASES:
        yield of_node(*linear.attention(rule, n, m, keys, more))
    for attributes, more in linear.CONVOLUTIONS:
        feeds = {"x": linear.X, "w": linear.W, **more}
        names = ", ".join(n if n in feeds else "" for n in ("x", "w", "bias", "past")).rstrip(", ")
        yield of_node(linear.call("CausalConvWithState", attributes, names, "y, s"), feeds)


CALLS: list[Made] = [
    *((c.model(), c.given[0]) for c in CHECKED if ("com.microsoft", c.op) in BODIES), *others()
]  # fmt: skip


def op_of(made: Made) -> str:
    return next(n.op_type for n in made[0].graph.node if n.domain)


ONE_OF_EACH = list({op_of(made): made for made in reversed(CALLS)}.values())


LACKED = {
    *FOR_GPUS,
    "GroupQueryAttention",
    "LayerNormalization",
    "SimplifiedLayerNormalization",
    "TransposeMatMul",
}


def value(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """By onnxruntime; by the oracle for operators, and sizes of heads, that its CPU provider lacks."""
    lacks = {n.op_type for n in model.graph.node if n.domain} & LACKED
    return reference(model, feeds) if lacks else run(model, feeds)


def check_lowered(made: Made) -> None:
    model, feeds = made
    lowered = optimize(model, passes=[Inline(names=op_of(made))], verify=False)
    assert not any(n.domain for n in lowered.graph.node)
    got = run(lowered, feeds)
    for name, wanted in value(model, feeds).items():
        np.testing.assert_allclose(got[name], wanted, atol=2e-5, rtol=2e-5, err_msg=name)


def check_mapped(made: Made) -> None:
    """Every float operand is mapped; the others, which may decide sizes, are shared."""
    model, feeds = made
    names = [n for n, v in feeds.items() if v.dtype == np.float32]
    done = map_inputs(load_own(model), names)
    _, *nested = done.program.blocks()  # a Scan of the call has it in a nested block
    assert not any(b.domain for block in nested for b in block.bindings)
    rows = [{n: v * f if n in names else v for n, v in feeds.items()} for f in (1.0, 0.5, 0.75)]
    rows = [{n: v.astype(feeds[n].dtype) for n, v in row.items()} for row in rows]
    stacked = {n: np.stack([r[n] for r in rows]) if n in names else v for n, v in feeds.items()}
    got = run(to_proto(done.program), stacked)
    each = [value(model, row) for row in rows]
    for name in each[0]:
        wanted = np.stack([r[name] for r in each])
        shared = np.broadcast_to(got[name], wanted.shape)  # a result that no mapped operand decides
        np.testing.assert_allclose(shared, wanted, atol=2e-5, rtol=2e-5, err_msg=name)


def test_every_operator_of_the_table_is_called() -> None:
    assert {op for domain, op in BODIES if domain} == {op_of(made) for made in CALLS}


@pytest.mark.parametrize("made", ONE_OF_EACH, ids=op_of)
def test_lowered(made: Made) -> None:
    check_lowered(made)


@pytest.mark.parametrize("made", ONE_OF_EACH, ids=op_of)
def test_mapped(made: Made) -> None:
    check_mapped(made)


MOE = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[3,2] x, float[3,4] r, float[4,2,2] w, float[4,2,2] v) => (float[3,2] z) {
    y = com.microsoft.MoE <k = 2ATTRIBUTES> (x, r, w, , v)  z = Neg (y) }"""


def test_results_keep_their_names_and_the_import_goes() -> None:
    model = onnx.parser.parse_model(MOE.replace("ATTRIBUTES", ""))
    lowered = optimize(model, passes=[Inline(names="com.microsoft::MoE")], verify=False)
    assert lowered.graph.node[-1].op_type == "Neg" and lowered.graph.node[-1].input[0] == "y"
    assert [o.domain for o in lowered.opset_import] == [""]


def test_a_call_that_its_body_declines_stays() -> None:
    model = onnx.parser.parse_model(MOE.replace("ATTRIBUTES", ", use_sparse_mixer = 1"))
    trace = Trace(explain=True)
    program = load_own(model)
    Inline(names="MoE").run(program, trace)
    assert [b.op for b in program.main.bindings] == ["MoE", "Neg"]
    assert "use_sparse_mixer is not supported" in next(iter(trace.declined))[2]


CUBE = '<ir_version: 10, opset_import: ["" : 21, "my" : 1]> '


def test_a_body_of_the_caller() -> None:
    text = f"{CUBE} g (float[2] x) => (float[2] y) {{ y = my.Cube <scale = 2.0> (x) }}"
    with temporary_rules():
        body("my::Cube", lambda x, *, scale=1.0: x * x * x * scale)
        lowered = optimize(
            onnx.parser.parse_model(text), passes=[Inline(names="Cube")], verify=False
        )
        assert {n.op_type for n in lowered.graph.node} == {"Mul"}
        done = map_inputs(load_own(onnx.parser.parse_model(text)), ["x"])
        assert not any(b.domain for b in done.program.main.bindings) and not done.scanned


def test_a_body_that_contains_its_operator_is_opened_once() -> None:
    text = f"{CUBE} g (float[2] x) => (float[2] y) {{ y = my.Cube (x) }}"
    with temporary_rules():
        body("my::Cube", lambda x: op.domain("my").Cube(x) * x)
        program = load_own(onnx.parser.parse_model(text))
        Inline(names="Cube").run(program, Trace())
        assert [b.op for b in program.main.bindings] == ["Cube", "Mul"]


OPENED = [
    "k = Relu (q)  y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, q)",
    "t = MatMul (q, c)  r = Reshape (t, s)  y = com.microsoft.MoE <k = 1> (q, r, w, , v)",
    "y = com.microsoft.SkipLayerNormalization (q, q, e)",
]


@pytest.mark.parametrize("text", OPENED)
def test_a_fixed_batch_opens(text: str) -> None:
    """`y` of two rows is that of each row."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (float[1,3,4] q) => (float[1,3,4] y)
        <int64[2] s = {{3, 2}}, float[4] e = {{1.0, 2.0, 3.0, 4.0}}>
        {{ {text} }}"""
    )
    weights = {"w": normal(2, 3, 4), "v": normal(2, 4, 3, seed=1), "c": normal(4, 2, seed=2)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in weights.items())
    opened = open_batch(model)
    assert not any(n.op_type == "Scan" for n in opened.graph.node)
    rows = normal(2, 3, 4, seed=7)
    wanted = np.concatenate([run(model, {"q": row[None]})["y"] for row in rows])
    np.testing.assert_allclose(run(opened, {"q": rows})["y"], wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
def test_every_call_lowered_and_mapped() -> None:
    for made in CALLS:
        check_lowered(made)
        check_mapped(made)
