from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.rewriting import Done, apply

RNG = np.random.default_rng(0)
QUANTIZED = ("QLinear", "QGemm", "Integer", "QuantizeLinear")
Arrays = dict[str, Any]


def u8(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Any:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def f32(*values: float) -> Any:
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def model_of(
    op: str, operands: Arrays, outs: int = 1, inputs: str = "x", domain: str = "", **attrs: Any
) -> ModelProto:
    """One node; operands called in `inputs` are graph inputs, the rest initializers; None leaves one out."""
    fed = inputs.split()
    names = [n if v is not None else "" for n, v in operands.items()]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outs)], domain=domain, **attrs)
    types = {
        n: helper.np_dtype_to_tensor_dtype(v.dtype) for n, v in operands.items() if v is not None
    }
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, types[n], operands[n].shape) for n in fed],
        [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outs)],
        [
            numpy_helper.from_array(v, n)
            for n, v in operands.items()
            if v is not None and n not in fed
        ],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def conv(**changes: Any) -> tuple[ModelProto, Arrays]:
    operands = {
        "x": u8(1, 3, 6, 6), "sx": f32(0.02), "zx": np.uint8(131).reshape(()), "w": i8(4, 3, 3, 3),
        "sw": f32(0.01, 0.02, 0.015, 0.012), "zw": np.zeros(4, np.int8), "sy": f32(0.3),
        "zy": np.uint8(120).reshape(()), "B": RNG.integers(-999, 999, 4).astype(np.int32),
    }  # fmt: skip
    operands.update(changes)
    return model_of("QLinearConv", operands, pads=[1, 1, 1, 1], strides=[2, 2]), {
        "x": operands["x"]
    }


def matmul(**changes: Any) -> tuple[ModelProto, Arrays]:
    operands = {
        "a": u8(4, 16), "sa": f32(0.02), "za": np.uint8(130).reshape(()), "w": i8(16, 5), "sw": f32(0.01),
        "zw": np.int8(3).reshape(()), "sy": f32(0.2), "zy": np.uint8(110).reshape(()),
    }  # fmt: skip
    operands.update(changes)
    return model_of("QLinearMatMul", operands, inputs="a"), {"a": operands["a"]}


def contrib(
    op: str, operands: Arrays, inputs: str = "a", **attrs: Any
) -> tuple[ModelProto, Arrays]:
    return model_of(op, operands, inputs=inputs, domain="com.microsoft", **attrs), {
        n: operands[n] for n in inputs.split()
    }


def pair(name: str, data: Any, zero: int) -> Arrays:
    return {name: data, f"s{name}": f32(0.03), f"z{name}": np.array(zero, data.dtype)}


OUT = {"sy": f32(0.05), "zy": np.uint8(100).reshape(())}
GEMM = {
    **pair("a", u8(4, 7), 120),
    **pair("b", i8(7, 5), 2),
    "c": RNG.integers(-500, 500, 5).astype(np.int32),
}
CASES: dict[str, tuple[ModelProto, Arrays]] = {
    "conv": conv(),
    "conv per tensor": conv(sw=f32(0.01), zw=np.int8(0).reshape(()), B=None),
    "conv uint8 weight": conv(w=u8(4, 3, 3, 3), sw=f32(0.01), zw=np.uint8(127).reshape(())),
    "matmul": matmul(),
    "matmul per column": matmul(sw=f32(0.01, 0.02, 0.03, 0.01, 0.02), zw=np.zeros(5, np.int8)),
    "matmul batch": matmul(a=u8(2, 4, 16)),
    "matmul integer": (
        model_of("MatMulInteger", {"x": u8(4, 16), "w": i8(16, 5), "zx": np.uint8(9).reshape(()), "zw": i8(5)}),
        {"x": u8(4, 16)},
    ),
    "matmul integer plain": (model_of("MatMulInteger", {"x": u8(4, 16), "w": u8(16, 5)}), {"x": u8(4, 16)}),
    "conv integer": (
        model_of("ConvInteger", {"x": u8(1, 2, 5, 5), "w": u8(3, 2, 3, 3), "zx": np.uint8(9).reshape(())}, pads=[1] * 4),
        {"x": u8(1, 2, 5, 5)},
    ),
    "dynamic": (
        model_of("DynamicQuantizeLinear", {"x": RNG.standard_normal((3, 4)).astype(np.float32)}, outs=3),
        {"x": RNG.standard_normal((3, 4)).astype(np.float32)},
    ),
    "dynamic above zero": (
        model_of("DynamicQuantizeLinear", {"x": f32(0.5, 0.6, 0.9)}, outs=3), {"x": f32(0.5, 0.6, 0.9)},
    ),
    "dynamic below zero": (
        model_of("DynamicQuantizeLinear", {"x": f32(-0.5, -0.6, -0.9)}, outs=3), {"x": f32(-0.5, -0.6, -0.9)},
    ),
    "dynamic zeros": (
        model_of("DynamicQuantizeLinear", {"x": np.zeros((3, 4), np.float32)}, outs=3), {"x": np.zeros((3, 4), np.float32)},
    ),
    "add": contrib("QLinearAdd", {**pair("a", u8(3, 4), 128), **pair("b", u8(4), 100), **OUT}, "a b"),
    "mul": contrib("QLinearMul", {**pair("a", u8(3, 4), 128), **pair("b", u8(3, 4), 100), **OUT}, "a b"),
    "sigmoid": contrib("QLinearSigmoid", {**pair("a", u8(3, 4), 128), "sy": f32(1 / 256), "zy": np.uint8(0).reshape(())}),
    "leaky": contrib("QLinearLeakyRelu", {**pair("a", i8(3, 4), 1), "sy": f32(0.05), "zy": np.int8(5).reshape(())}, alpha=0.2),
    "average pool": contrib("QLinearAveragePool", {**pair("a", u8(1, 2, 6, 6), 128), **OUT}, kernel_shape=[2, 2], strides=[2, 2]),
    "global pool": contrib("QLinearGlobalAveragePool", {**pair("a", u8(1, 2, 6, 6), 128), **OUT}),
    "softmax": contrib("QLinearSoftmax", {**pair("a", u8(3, 8), 128), "sy": f32(1 / 256), "zy": np.uint8(0).reshape(())}, axis=1, opset=13),
    "concat": contrib("QLinearConcat", {**OUT, **pair("a", u8(3, 8), 128), **pair("b", u8(3, 2), 120)}, "a b", axis=1),
    "where": contrib("QLinearWhere", {"c": u8(3, 4) > 99, **pair("a", u8(3, 4), 128), **pair("b", u8(3, 4), 100), **OUT}, "c a b"),
    "gemm": contrib("QGemm", {**GEMM, **OUT}, alpha=0.7),
    "gemm without bias": contrib("QGemm", {k: v for k, v in GEMM.items() if k != "c"} | {"c": None}),
    "gemm float": contrib("QGemm", {**GEMM, "b": i8(5, 7), "zb": np.int8(0).reshape(())}, transB=1),
    "to float": contrib("MatMulIntegerToFloat", {
        "a": u8(4, 7), "b": i8(7, 5), "sa": f32(0.03), "sb": f32(0.02), "za": np.uint8(99).reshape(()), "zb": None,
        "bias": np.arange(5, dtype=np.float32),
    }),
    "dynamic matmul": contrib("DynamicQuantizeMatMul", {
        "a": RNG.standard_normal((4, 7)).astype(np.float32), "b": i8(7, 5), "sb": f32(0.02), "zb": np.int8(3).reshape(()),
        "bias": np.arange(5, dtype=np.float32),
    }),
    "dynamic matmul plain": contrib("DynamicQuantizeMatMul", {
        "a": RNG.standard_normal((4, 7)).astype(np.float32), "b": u8(7, 5), "sb": f32(0.02, 0.01, 0.03, 0.02, 0.01),
    }),
    "microsoft's quantize": contrib("QuantizeLinear", {
        "a": RNG.standard_normal((4, 7)).astype(np.float32), "sy": f32(0.02), "zy": np.uint8(99).reshape(()),
    }),
    "microsoft's dequantize": contrib("DequantizeLinear", {"a": i8(4, 7), "s": f32(0.02), "z": np.int8(9).reshape(())}),
}  # fmt: skip
# the same integers as the kernel's, bit for bit: it multiplies and rounds exact sums once
EXACT = {"conv", "conv per tensor", "conv uint8 weight", "matmul", "matmul per column", "matmul batch", "matmul integer",
         "matmul integer plain", "conv integer", "dynamic", "dynamic above zero", "dynamic below zero",
         "dynamic zeros", "gemm"}  # fmt: skip


def distances(done: Done, feeds: Arrays) -> list[float]:
    """The largest difference of each output from onnxruntime's own kernel, graph optimisations off."""
    want, got = run(done.before, feeds, optimize=False), run(done.after, feeds, optimize=False)
    assert [v.dtype for v in want.values()] == [v.dtype for v in got.values()]
    assert [v.shape for v in want.values()] == [v.shape for v in got.values()]
    return [
        float(np.abs(w.astype(np.float64) - g).max()) for w, g in zip(want.values(), got.values())
    ]


@pytest.mark.parametrize("form", ["qdq", "float"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.exact8
def test_against_onnxruntimes_kernels(name: str, form: str) -> None:
    model, feeds = CASES[name]
    done = apply(model, f"legalize{{to={form}}}")
    left = {b.op for b in done.program.main.bindings if any(q in b.op for q in QUANTIZED)}
    assert "com.microsoft" not in {b.domain for b in done.program.main.bindings}
    assert left <= ({"QuantizeLinear", "DequantizeLinear"} if form == "qdq" else set())
    (node,) = model.graph.node
    assert done.trace.counts[f"legalize_{node.op_type}"].applied == 1
    for distance, out in zip(distances(done, feeds), done.program.main.outputs):
        floating = out.dtype == TensorProto.FLOAT
        assert distance <= (1e-5 if floating else 0 if name in EXACT and form == "float" else 1)


@pytest.mark.parametrize("form", ["qdq", "float"])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("rows", ["a", "y", "a y"])
def test_a_matmul_with_scales_of_rows(rows: str, batch: tuple[int, ...], form: str) -> None:
    """ONNX has them, onnxruntime's kernel has not: against the definition."""
    changes = {"a": {"sa": f32(0.02, 0.01, 0.03, 0.02), "za": u8(4)},
               "y": {"sy": f32(0.2, 0.3, 0.1, 0.4), "zy": u8(4)}}  # fmt: skip
    model, feeds = matmul(
        a=u8(*batch, 4, 16), **{k: v for r in rows.split() for k, v in changes[r].items()}
    )
    of = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    sa, za, sy, zy = (of[n][:, None] if of[n].ndim else of[n] for n in ("sa", "za", "sy", "zy"))
    exact = ((feeds["a"] - za) * sa) @ ((of["w"] - of["zw"]) * of["sw"]) / sy
    want = np.clip(np.round(exact) + zy, 0, 255)
    (got,) = run(apply(model, f"legalize{{to={form}}}").after, feeds, optimize=False).values()
    near_tie = np.abs(exact - np.floor(exact) - 0.5) < 1e-4
    assert ((got == want) | near_tie).all() and not near_tie.all()


@pytest.mark.parametrize("form", ["qdq", "float"])
def test_a_mean_which_no_kernel_computes(form: str) -> None:
    """onnxruntime declares QLinearReduceMean and has no kernel of it on the CPU."""
    data = pair("a", u8(2, 3, 4), 128)
    model, feeds = contrib("QLinearReduceMean", {**data, **OUT}, axes=[1], keepdims=0)
    mean = (np.float32(data["sa"]) * (data["a"].astype(np.float32) - 128)).mean(axis=1)
    want = np.clip(np.rint(mean / np.float32(0.05)) + 100, 0, 255)
    found = run(apply(model, f"legalize{{to={form}}}").after, feeds)["y0"]
    assert found.dtype == np.uint8 and np.abs(found - want).max() <= 1


def test_sixteen_bits_need_opset_21() -> None:
    x = RNG.standard_normal((4, 7)).astype(np.float32)
    model, _ = contrib("QuantizeLinear", {"a": x, "sy": f32(0.02), "zy": np.uint16(99).reshape(())})
    assert "16 bits need opset 21" in apply(model, "legalize").declined
    assert apply(model, "legalize{to=float}").trace.rewrites
    model.opset_import[0].version = 21
    assert distances(apply(model, "legalize"), {"a": x}) == [0.0]


@pytest.mark.parametrize("opset", [10, 11])
def test_rounding_by_plain_operators_needs_opset_11(opset: int) -> None:
    data = {**pair("a", u8(3, 4), 128), **pair("b", u8(4), 100), **OUT}
    model, feeds = contrib("QLinearAdd", data, "a b")
    model.opset_import[0].version = opset
    done = apply(model, "legalize{to=float}")
    assert bool(done.trace.rewrites) == (opset == 11)
    assert ("opset 11" in done.declined) == (opset == 10)
    assert opset == 10 or distances(done, feeds)[0] <= 1


@pytest.mark.parametrize("signed", [True, False])
def test_four_bits_of_an_older_opset_are_kept_in_eight(signed: bool) -> None:
    """onnxruntime.quantization writes them with com.microsoft::DequantizeLinear below opset 21."""
    kind = TensorProto.INT4 if signed else TensorProto.UINT4
    text = """g (float[2,6] x) => (float[2,3] y) {
        d = com.microsoft.DequantizeLinear <axis = 1> (w, s, z)  y = MatMul (x, d) }"""
    model = parse(text)
    model.opset_import.add(domain="com.microsoft", version=1)
    values = np.arange(18) % 15 - (8 if signed else 0)
    model.graph.initializer.extend([
        helper.make_tensor("w", kind, (6, 3), values),
        numpy_helper.from_array(f32(0.1, 0.2, 0.3), "s"),
        helper.make_tensor("z", kind, (3,), (0, 1, 2)),
    ])  # fmt: skip
    x = RNG.standard_normal((2, 6)).astype(np.float32)
    for form in ("qdq", "float"):
        done = apply(model, f"legalize{{to={form}}}")
        assert "com.microsoft" not in {b.domain for b in done.program.main.bindings}
        assert distances(done, {"x": x})[0] < 1e-6


def test_softmax_of_another_opset() -> None:
    """Before opset 13 along all axes from one on, so that only the last one means the same."""
    out = {"sy": f32(1 / 256), "zy": np.uint8(0).reshape(())}
    for axis, known in ((1, False), (2, True)):
        model, feeds = contrib(
            "QLinearSoftmax", {**pair("a", u8(3, 8, 4), 128), **out}, axis=axis, opset=12
        )
        done = apply(model, "legalize")
        assert bool(done.trace.rewrites) == known and ("another axis" in done.declined) != known
        assert not known or distances(done, feeds)[0] <= 1


def test_the_two_forms_of_a_matmul(golden: Callable[[str, str], None]) -> None:
    model = matmul()[0]
    texts = [apply(model, f"legalize{{to={form}}}").text for form in ("qdq", "float")]
    golden("legalize", "\n\n".join(texts))


@pytest.mark.parametrize("name", ["dequantize", "quantize"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_plain_arithmetic_alone(name: str, per_channel: bool) -> None:
    scale = f32(0.5, 0.25, 0.1) if per_channel else f32(0.25)
    zero = np.array([1, 2, 3], np.int8) if per_channel else np.int8(-7).reshape(())
    if name == "quantize":
        x = (RNG.standard_normal((2, 3, 4)) * 30).astype(np.float32)
        model = model_of("QuantizeLinear", {"x": x, "s": scale, "z": zero}, axis=1)
    else:
        x = i8(2, 3, 4)
        model = model_of("DequantizeLinear", {"x": x, "s": scale, "z": zero}, axis=1)
    done = apply(model, "legalize{to=float}")
    assert not any("Quantize" in b.op or "quantize" in b.op for b in done.program.main.bindings)
    assert distances(done, {"x": x}) == [0.0]
    assert apply(model, "legalize").after == model


def test_the_bound_is_reported_where_float32_is_too_narrow() -> None:
    short = model_of("MatMulInteger", {"x": u8(1, 257), "w": np.full((257, 2), 255, np.uint8)})
    long = model_of("MatMulInteger", {"x": u8(1, 259), "w": np.full((259, 2), 255, np.uint8)})
    assert 257 * 255 * 255 <= 2**24 < 259 * 255 * 255
    assert not apply(short, "legalize{to=float}").declined
    reasons = apply(long, "legalize{to=float}").declined
    assert f"sums may reach {259 * 255 * 255}" in reasons and "off by up to" in reasons
    full = {"x": np.full((1, 257), 255, np.uint8)}
    assert distances(apply(short, "legalize{to=float}"), full) == [0.0]


def test_the_bound_holds() -> None:
    x, w = np.full((1, 4099), 255, np.uint8), np.full((4099, 3), 255, np.uint8)
    w[::2] = 254
    done = apply(model_of("MatMulInteger", {"x": x, "w": w}), "legalize{to=float}")
    terms, largest = 4099, int((w.astype(np.int64).sum(axis=0) * 255).max())
    assert distances(done, {"x": x})[0] <= terms * 2.0**-24 * largest * 1.01


def test_an_unknown_length_is_reported() -> None:
    text = "g (uint8[4,K] a, uint8[K,5] b) => (int32[4,5] y) { y = MatMulInteger(a, b) }"
    assert "the length of the sum is unknown" in apply(parse(text), "legalize{to=float}").declined


def test_a_channels_last_convolution_is_left_alone() -> None:
    model = contrib(
        "QLinearGlobalAveragePool", {**pair("a", u8(1, 6, 6, 2), 128), **OUT}, channels_last=1
    )[0]
    done = apply(model, "legalize{to=float}")
    assert done.after == model and "channels_last" in done.declined


def test_per_channel_in_qdq_form_needs_opset_13() -> None:
    model = conv()[0]
    model.opset_import[0].version = 12
    model.ir_version = 7
    done = apply(model, "legalize")
    assert done.after == model and "opset 13" in done.declined
    assert apply(model, "legalize{to=float}").trace.rewrites


def test_unused_outputs_of_dynamic_quantization() -> None:
    text = """g (float[3,4] x) => (float[3,4] y) { q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z) }"""
    done = apply(parse(text), "legalize{to=float}")
    assert not any("uantize" in b.op for b in done.program.main.bindings)
    done.prove(checks=["onnxruntime"])


def test_unknown_form() -> None:
    with pytest.raises(InputError, match="must be one of qdq, float"):
        apply(matmul()[0], "legalize{to=int4}")


def test_a_model_without_quantized_operators_is_untouched() -> None:
    model = parse("g (float[3,4] x) => (float[3,4] y) { y = Relu(x) }")
    assert apply(model, "legalize{to=float}").after == model
