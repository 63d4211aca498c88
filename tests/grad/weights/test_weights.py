"""onnxgrad/grad/weights/decision.py: what is a weight, by role; on the training models exactly PyTorch's parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgrad import gradient
from onnxgrad.grad.weights.decision import Decision
from onnxgrad.grad.wrt import hoist, nested_constants, weigh
from onnxgrad.ir.load import load
from onnxgrad.ir.types import FLOAT_DTYPES
from tests.helpers import MODELS_DIR, stored_arrays

TRAINING = sorted((MODELS_DIR / "training").glob("*.onnx"))
RNG = np.random.default_rng(0)


def trained(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def decided(model: onnx.ModelProto) -> dict[str, Decision]:
    program = load(model)
    hoist(program, nested_constants(program))
    values = {v.name: v for v in program.main.vars()}
    targets = [v for v in program.main.outputs if v.dtype in FLOAT_DTYPES]
    return {v.name: d for v, d in weigh(program.main, targets, values).items()}


def weights(model: onnx.ModelProto) -> set[str]:
    return {name for name, d in decided(model).items() if d.is_weight}


def model_of(
    body: str, constants: Mapping[str, Any], inputs: str = "float[2,8,6] x"
) -> onnx.ModelProto:
    """A model of a body and the float arrays that it names; a name may be one that onnx's text format cannot spell."""
    spelled = {re.sub(r"\W", "__", name).lstrip("_"): name for name in constants}
    for spelling, name in spelled.items():
        body = body.replace(name, spelling)
    found = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> m ({inputs}) => (float y) {{ {body} }}'
    )
    for node in found.graph.node:
        node.input[:] = [spelled.get(name, name) for name in node.input]
    arrays = {name: np.asarray(a, np.float32) for name, a in constants.items()}
    found.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    return found


def named(model: onnx.ModelProto, style: str) -> dict[str, str]:
    """Rename every initializer by a pattern, and forget what the exporter said of it; the old names by the new."""
    new = {t.name: style.format(90000 + i) for i, t in enumerate(model.graph.initializer)}
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
    for t in model.graph.initializer:
        t.name = new[t.name]
    for v in model.graph.value_info:
        v.name = new.get(v.name, v.name)
        del v.metadata_props[:]
    return {b: a for a, b in new.items()}


# ---- the training models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TRAINING, ids=lambda p: p.stem)
@pytest.mark.parametrize("style", ["", "val_{}", "t{}", "/model/Constant_{}_output_0"])
def test_exactly_the_parameters_of_pytorch(path: Any, style: str) -> None:
    """Under names that say nothing, or say that all are constants, the same: the graph itself tells."""
    model = onnx.load(path)
    inputs = {v.name for v in model.graph.input}
    expected = {
        k.removeprefix("grad:")
        for k in stored_arrays(path.with_suffix(".npz"))
        if k.startswith("grad:")
    } - inputs
    back = named(model, style) if style else {}
    assert {back.get(name, name) for name in weights(model)} == expected


LEFT_OUT = {
    "gpt2": {"where": "a mask"},
    "llama": {"where": "a mask", "unsqueeze_14": "rotary", "unsqueeze_15": "rotary"},
    "unet": {
        "val_8": "in a normalisation, and a scale follows",
        "val_11": "in a normalisation, and a scale follows",
    },
    "lstm_tagger": {
        "/model/both/Expand_output_0": "initial state",
        "/model/forth/Expand_output_0": "initial state",
    },
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_the_reason_is_told(name: str) -> None:
    found = decided(onnx.load(MODELS_DIR / "training" / f"{name}.onnx"))
    arrays = {
        n: d.why
        for n, d in found.items()
        if not d.is_weight and "constant of the formula" not in d.why
    }
    assert arrays.keys() == LEFT_OUT[name].keys()
    assert all(why in arrays[n] for n, why in LEFT_OUT[name].items())


# ---- the models of models/: what is left out, judged by hand ------------------------------------------------------------

JUDGED = {
    "clip": {"where"},
    "densenet121": "running",
    "llama": {"where", "unsqueeze_14", "unsqueeze_15"},
    "llama.raw": {"model.model.rotary_emb.inv_freq"},
    "mobilenet_v2.raw": "running",
    "resnet18": set(),
    "t5": {"where", "where_2", "where_3", "zeros_3"},
    "unet": {"unsqueeze_1", "val_41", "val_44"},
    "vit": {"where"},
    "whisper": {"where", "embedding"},
    "whisper.raw": set(),
    "yolox_script": "running",
}


@pytest.mark.parametrize("name", JUDGED)
def test_what_real_models_leave_out(name: str) -> None:
    model = onnx.load(MODELS_DIR / f"{name}.onnx")
    arrays = {t.name for t in model.graph.initializer if np.prod(t.dims) > 1}
    found = {n for n, d in decided(model).items() if not d.is_weight and n in arrays}
    expected = JUDGED[name]
    assert (
        found == expected
        if isinstance(expected, set)
        else found and all(expected in n for n in found)
    )


# ---- one element -------------------------------------------------------------------------------------------------------


def test_numbers_that_are_weights() -> None:
    """A temperature, a LayerScale, the slope of a PRelu, the bias of one column and of one filter."""
    body = """
        t = Div (x, head.temperature)  e = Exp (logit_scale)  u = Mul (t, e)  l = Mul (u, block.ls.gamma)
        p = PRelu (l, slope)  m = MatMul (p, w)  b = Add (m, one_bias)  c = Conv (p, filter, conv_bias)
        q = Mul (b, strange)  s = ReduceSum <keepdims = 0> (q)  r = ReduceSum <keepdims = 0> (c)  y = Add (s, r) """
    constants = {
        "head.temperature": 1.0, "logit_scale": 2.6593, "block.ls.gamma": [1e-5], "slope": [0.25], "w": trained(6, 1),
        "one_bias": [0.0], "filter": trained(1, 8, 1), "conv_bias": [0.0], "strange": 1.3846153,
    }  # fmt: skip
    assert weights(model_of(body, constants)) == constants.keys()


@pytest.mark.parametrize(
    "number",
    [
        0.5,
        2**-0.5,
        0.044715,
        1e-5,
        8**0.5,
        1 / 15**0.5,
        1.702,
        (2 / np.pi) ** 0.5,
        100.0,
        np.log(10000.0),
        0.0,
    ],
)
@pytest.mark.parametrize(
    "name", ["k", "val_12", "/layer/Constant_5_output_0", "_to_copy", "mul_7", "Const_8:0"]
)
def test_numbers_of_formulas(number: float, name: str) -> None:
    found = decided(
        model_of(f"a = Mul (x, {name}) y = ReduceSum <keepdims = 0> (a)", {name: number})
    )
    assert not found[name].is_weight and "constant of the formula" in found[name].why


def test_a_constant_node_of_one_element_is_a_number() -> None:
    body = "c = Constant <value = float {1.3846153}> () a = Mul (x, c) y = ReduceSum <keepdims = 0> (a)"
    assert not weights(model_of(body, {}))


# ---- masks and tables against learned positions --------------------------------------------------------------------------

SCORES = """q = MatMul (x, w) k = Transpose <perm = [0, 2, 1]> (q) s = MatMul (q, k) a = Add (s, table)
    p = Softmax (a) v = MatMul (p, x) y = ReduceSum <keepdims = 0> (v)"""
ADDED = "h = MatMul (x, w) a = Add (h, table) y = ReduceSum <keepdims = 0> (a)"
CAUSAL = np.where(np.tri(8, dtype=bool), 0, -np.inf)
POSITIONS = np.arange(8)[:, None] * 10000.0 ** (-np.arange(3) / 3)
SINES = np.concatenate([np.sin(POSITIONS), np.cos(POSITIONS)], 1)


@pytest.mark.parametrize(
    ("body", "table", "why"),
    [
        (SCORES, CAUSAL[None], "mask"),
        (SCORES, np.where(np.tri(8), 0, -10000.0)[None], "mask"),
        (SCORES, np.zeros((1, 8, 8)), "before a Softmax, all 0"),
        (
            SCORES,
            -0.25 * np.abs(np.arange(8)[:, None] - np.arange(8))[None] + 0.1,
            "numbers of few digits",
        ),
        (SCORES, -0.3 * np.broadcast_to(np.arange(8.0), (1, 8, 8)) - 0.123456, "evenly spaced"),
        (SCORES, trained(1, 8, 8), ""),
        (ADDED, SINES[None], "sines of the position"),
        (ADDED, np.arange(48).reshape(1, 8, 6), "whole numbers"),
        (ADDED, trained(1, 8, 6), ""),
        (ADDED, [0.0] * 6, ""),
    ],
    ids=[
        "causal",
        "finite",
        "nothing",
        "distances",
        "alibi",
        "learned",
        "sines",
        "grid",
        "positions",
        "zero bias",
    ],
)
def test_tables(body: str, table: Any, why: str) -> None:
    found = decided(model_of(body, {"w": trained(6, 6), "table": table}))
    assert found["w"].is_weight
    assert (
        (why in found["table"].why and not found["table"].is_weight)
        if why
        else found["table"].is_weight
    )


@pytest.mark.parametrize("swap", [False, True])
def test_rotary_tables(swap: bool) -> None:
    angles = np.arange(8)[:, None] * np.array([1.0, 0.1, 0.01])
    body = """h = MatMul (x, w) c = Mul (h, cos) n = Constant <value = int64[1] {3}> ()
        r1, r2 = Split <axis = -1, num_outputs = 2> (h) m = Neg (r2) r = Concat <axis = -1> (m, r1)
        s = Mul (r, sin) a = Add (c, s) y = ReduceSum <keepdims = 0> (a)"""
    tables = {"cos": np.tile(np.cos(angles), 2)[None], "sin": np.tile(np.sin(angles), 2)[None]}
    if swap:
        body = body.replace("Add (c, s)", "Add (s, c)").replace("Mul (h, cos)", "Mul (cos, h)")
    assert weights(model_of(body, {"w": trained(6, 6), **tables})) == {"w"}


def test_uniform_scales_are_no_rotary_tables() -> None:
    """Two scales that begin as one number have one sum of squares too."""
    body = "h = MatMul (x, w) a = Mul (h, u.gamma) b = Mul (x, v.gamma) c = Add (a, b) y = ReduceSum <keepdims = 0> (c)"
    ones = np.ones(6)
    assert weights(model_of(body, {"w": trained(6, 6), "u.gamma": ones, "v.gamma": ones})) == {
        "w",
        "u.gamma",
        "v.gamma",
    }


def test_frequencies_of_cos_and_sin() -> None:
    body = """a = Mul (x, f) c = Cos (a) s = Sin (a) j = Concat <axis = -1> (c, s) h = MatMul (j, w)
        y = ReduceSum <keepdims = 0> (h)"""
    geometric = 10000.0 ** (-np.arange(6) / 6)
    assert weights(model_of(body, {"w": trained(12, 2), "f": geometric})) == {"w"}
    assert weights(model_of(body, {"w": trained(12, 2), "f": trained(6)})) == {"w", "f"}


# ---- structure -----------------------------------------------------------------------------------------------------------


def test_a_decomposed_batch_normalisation() -> None:
    """Scale and bias are weights, the mean that is subtracted and the variance under the root are none."""
    body = """d = Sub (x, m) v1 = Add (v, eps) r = Sqrt (v1) n = Div (d, r) s = Mul (n, g) o = Add (s, b)
        y = ReduceSum <keepdims = 0> (o)"""
    constants = {
        "m": trained(6),
        "v": np.exp(trained(6)),
        "eps": 1e-5,
        "g": np.ones(6),
        "b": np.zeros(6) + 1e-9,
    }
    found = decided(model_of(body, constants))
    assert {n for n, d in found.items() if d.is_weight} >= {"b"}
    assert not any(found[n].is_weight for n in ("m", "v", "eps"))


def test_data_are_standardised_and_temperatures_divided_by() -> None:
    """(x - m) / s is how data begin; a division alone may be by what was learned."""
    body = """d = Sub (x, m) n = Div (d, s) h = MatMul (n, w) t = Div (h, tau) y = ReduceSum <keepdims = 0> (t)"""
    constants = {
        "m": trained(6),
        "s": np.exp(trained(6)),
        "w": trained(6, 6),
        "tau": np.exp(trained(6)),
    }
    assert weights(model_of(body, constants)) == {"w", "tau"}


def test_a_dead_filter_is_no_table_of_sines() -> None:
    """The first filters are zeros, which any frequency fits; a basis of cosines under no name is told."""
    body = "h = Conv (x, val_7) y = ReduceSum <keepdims = 0> (h)"
    dead = trained(6, 8, 5)
    dead[:3] = 0
    assert weights(model_of(body, {"val_7": dead})) == {"val_7"}
    basis = np.cos(2 * np.pi * np.outer(np.arange(6), np.arange(5)) / 7)[:, None] * np.ones(
        (1, 8, 1)
    )
    assert not weights(
        model_of(
            "h = Conv (x, val_7) y = ReduceSum <keepdims = 0> (h)",
            {"val_7": basis[:, :1]},
            "float[2,1,9] x",
        )
    )


def test_weight_normalisation_of_a_matrix() -> None:
    """w = g v / |v|: both are weights, though constants alone make the matrix."""
    body = """q = Mul (v, v) s = ReduceSum (q, axes) n = Sqrt (s) u = Div (v, n) w = Mul (u, g) h = MatMul (x, w)
        y = ReduceSum <keepdims = 0> (h)"""
    found = model_of(body, {"v": trained(6, 3), "g": trained(1, 3)})
    found.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    assert weights(found) == {"v", "g"}


def test_moves_are_looked_through() -> None:
    body = """t = Transpose <perm = [1, 0]> (w) h = MatMul (x, t) u = Unsqueeze (b, at) c = Add (h, u)
        e = Expand (token, shape) j = Concat <axis = 1> (e, c) z = Expand (zeros, shape) k = Concat <axis = 1> (z, j)
        y = ReduceSum <keepdims = 0> (k)"""
    found = model_of(
        body,
        {
            "w": trained(6, 6),
            "b": trained(6),
            "token": trained(1, 1, 6),
            "zeros": np.zeros((1, 1, 6)),
        },
    )
    for name, value in {"at": [0], "shape": [2, 1, 6]}.items():
        found.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    assert weights(found) == {"w", "b", "token"}


@pytest.mark.parametrize("learned", [False, True])
def test_initial_states(learned: bool) -> None:
    body = """x1 = Transpose <perm = [1, 0, 2]> (x)
        a, h, c = LSTM <hidden_size = 4> (x1, w, r, b, , h0, c0) y = ReduceSum <keepdims = 0> (a)"""
    state = trained(1, 2, 4) if learned else np.zeros((1, 2, 4))
    weights_ = {"w": trained(1, 16, 6), "r": trained(1, 16, 4), "b": trained(1, 32)}
    found = weights(model_of(body, {**weights_, "h0": state, "c0": state}))
    assert found == weights_.keys() | ({"h0", "c0"} if learned else set())


def test_the_state_of_a_loop_is_told_from_what_it_carries_unchanged() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        m (float[2,3] x, int64 n) => (float y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}, float[2,3] h0 = {0,0,0,0,0,0}, bool go = {1}> {
          h, u = Loop (n, go, h0, w) <body: graph = b (int64 i, bool c, float[2,3] h_in, float[3,3] w_in)
            => (bool c, float[2,3] h_out, float[3,3] w_in) { a = MatMul (h_in, w_in) h_out = Add (a, x) }>
          y = ReduceSum <keepdims = 0> (h)
        }""")
    found = decided(model)
    assert found["w"].is_weight and not found["h0"].is_weight and "initial state" in found["h0"].why


def test_what_a_function_reads() -> None:
    model = model_of(
        "h = f.Linear (x, w, b) y = ReduceSum <keepdims = 0> (h)",
        {"w": trained(6, 6), "b": np.zeros(6)},
    )
    nodes = [
        helper.make_node("MatMul", ["a", "m"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["o"]),
    ]
    opsets = [helper.make_opsetid("", 20)]
    model.functions.append(
        helper.make_function("f", "Linear", ["a", "m", "c"], ["o"], nodes, opsets)
    )
    model.opset_import.add(domain="f", version=1)
    assert {"w"} <= weights(model)
    assert [v.name for v in gradient(model, "params").graph.output][1] == "w_grad"


def test_the_exporter_s_word_counts_more() -> None:
    body = "h = MatMul (x, w) a = Add (h, c) t = Mul (a, tau) y = ReduceSum <keepdims = 0> (t)"
    model = model_of(body, {"w": trained(6, 6), "c": trained(8, 6), "tau": 1.5})
    for name, kind in {"tau": "PARAMETER", "c": "BUFFER"}.items():
        info = onnx.ValueInfoProto(name=name)
        info.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value=kind)
        model.graph.value_info.append(info)
    found = decided(model)
    assert {n for n, d in found.items() if d.is_weight} == {"w", "tau"}
    assert found["c"].why == "buffer of the module that was exported"


@pytest.mark.parametrize(
    "name", ["stft.forward_basis_buffer", "rotary_emb.inv_freq", "attn.causal_mask"]
)
def test_buffers_by_name(name: str) -> None:
    assert not weights(
        model_of(f"h = MatMul (x, {name}) y = ReduceSum <keepdims = 0> (h)", {name: trained(6, 6)})
    )


def test_statistics_by_name_but_not_in_products() -> None:
    body = "a = Add (x, norm.mean) h = MatMul (a, w_mean) y = ReduceSum <keepdims = 0> (h)"
    assert weights(model_of(body, {"norm.mean": trained(8, 6), "w_mean": trained(6, 6)})) == {
        "w_mean"
    }


def test_only_what_reaches_the_target() -> None:
    body = "h = MatMul (x, w) f = Floor (b) a = Add (h, f) y = ReduceSum <keepdims = 0> (a)"
    assert decided(model_of(body, {"w": trained(6, 6), "b": trained(6)})).keys() == {"w"}


@pytest.mark.parametrize("name", ["beta", "alpha", "scale", "gamma"])
def test_a_number_that_a_node_makes_is_no_weight_by_its_name(name: str) -> None:
    """What torch.export writes for Softplus: the number 1 behind a CastLike, under a parameter's name."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]> m (float[2,6] x) => (float y) {{
            h = MatMul (x, w) {name} = Constant <value_float = 1.5> () c = CastLike ({name}, h)
            s = Mul (h, c) p = Softplus (s) y = ReduceSum <keepdims = 0> (p) }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(trained(6, 3), "w"))
    assert weights(model) == {"w"}
    # as an initializer it is one
    del model.graph.node[1]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1.5), name))
    assert weights(model) == {"w", name}
