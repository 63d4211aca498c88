"""onnxgrad/laws/composites/raise_for_onnxruntime.py: attention as onnxruntime's MultiHeadAttention, and its FastGelu."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewriting import Done, apply, model_of

LOWEST = float(np.finfo(np.float32).min)
SPLIT = """xr = Reshape(x, split) q = Transpose <perm = [0, 2, 1, 3]> (xr) kr = Reshape(k, split) t = Transpose <perm = [0, 2, 3, 1]> (kr)
    vr = Reshape(v, split) h = Transpose <perm = [0, 2, 1, 3]> (vr)"""
JOIN = "c = MatMul(p, h) o = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape(o, join)"
NUMBERS = f"""<int64[4] split = {{0, 0, 2, 32}}, int64[3] join = {{0, 0, 64}}, float half = {{0.5}}, float none = {{0}}, float zero = {{0}},
    float low = {{{LOWEST!r}}}>"""
ROWS = "float[2,{0},64] x, float[2,{1},64] k, float[2,{1},64] v"


def chain(
    scores: str, queries: object = 6, keys: object = 6, more: str = "", opset: int = 17, **swap: str
) -> Done:
    """What becomes of a chain whose p is made from the queries q and the transposed keys t."""
    body = f"{SPLIT} {scores} {JOIN}"
    for old, new in swap.values():
        body = body.replace(old, new)
    text = f"g ({ROWS.format(queries, keys)}{more}) => (float[2,{queries},64] y) {NUMBERS} {{ {body} }}"
    return apply(model_of(text, opset=opset), "raise-for-onnxruntime", "remove-unused")


PLAIN = "s = MatMul(q, t) z = Mul(s, half) p = Softmax <axis = -1> (z)"
MASKED = "s = MatMul(q, t) z = Mul(s, half) m = Where(keep, zero, low) a = Add(z, m) p = Softmax <axis = 3> (a)"
SCALES = {
    "of scores": (PLAIN, 0.5),
    "of queries and scores": ("r = Mul(q, half) s = MatMul(r, t) z = Div(s, half) p = Softmax <axis = -1> (z)", 1),
    "none": ("s = MatMul(q, t) p = Softmax <axis = -1> (s)", 1),
}  # fmt: skip


@pytest.mark.parametrize(("scores", "scale"), SCALES.values(), ids=SCALES)
@pytest.mark.parametrize(("queries", "keys", "opset"), [(6, 6, 13), (5, 7, 17), ("S", "S", 24)])
def test_a_chain_without_a_mask(
    scores: str, scale: float, queries: object, keys: object, opset: int
) -> None:
    done = chain(scores, queries, keys, opset=opset)
    assert [str(b).split(" = ", 1)[1] for b in done.block.bindings] == [
        f"com.microsoft::MultiHeadAttention(x, k, v, num_heads=2, scale={scale:g})"
    ]
    done.prove()


def test_zeros_in_place_of_nan() -> None:
    scores = PLAIN.replace("p =", "w =") + " n = IsNaN(w) p = Where(n, zero, w)"
    done = chain(scores)
    assert done.ops == ["MultiHeadAttention"]
    done.prove()


@pytest.mark.slow
def test_a_masked_chain_of_many_rows() -> None:
    done = chain(MASKED, 512, 512, ", bool[2,1,512,512] keep")
    assert done.ops == ["Where", "MultiHeadAttention"]
    assert "MultiHeadAttention(x, k, v, _, _, where, " in done.text
    done.prove()
    of_keys = chain(MASKED, 512, 512, ", bool[512] keep")
    assert of_keys.ops == ["Where", "Expand", "Unsqueeze", "MultiHeadAttention"]
    of_keys.prove()


@pytest.mark.slow
@pytest.mark.parametrize("opset", range(9, 16))
def test_a_mask_of_many_rows_below_opset_15(opset: int) -> None:
    """Shape has no `start` there."""
    done = chain(MASKED, 512, 512, ", bool[512] keep", opset=opset)
    assert "MultiHeadAttention" in done.ops
    done.prove()


def test_a_scale_below_zero() -> None:
    """MultiHeadAttention takes it, where ONNX's Attention does not."""
    body = f"{SPLIT} {PLAIN} {JOIN}"
    text = f"g ({ROWS.format(6, 6)}) => (float[2,6,64] y) {NUMBERS.replace('{0.5}', '{-0.5}')} {{ {body} }}"
    done = apply(model_of(text, opset=17), "raise-for-onnxruntime", "remove-unused")
    assert done.ops == ["MultiHeadAttention"] and "scale=-0.5" in done.text
    done.prove()


DECLINED = {
    "few rows under a mask": (MASKED, 6, 6, ", bool[2,1,6,6] keep", {}, "pays from 512 rows on, not at 6"),
    "unknown rows under a mask": (MASKED, "S", "S", ", bool[2,1,S,S] keep", {}, "it has S: --fix-dim says how many"),
    "no rows": (PLAIN, 6, 6, "", {"o": ("o = Transpose <perm = [0, 2, 1, 3]>", "o = Transpose <perm = [0, 2, 3, 1]>")}, ""),
    "another join": (PLAIN, 6, 6, "", {"y": ("Reshape(o, join)", "Reshape(o, other) ")}, "its results are not joined to rows"),
    "another axis": (PLAIN.replace("-1", "2"), 6, 6, "", {}, ""),
    "weights read elsewhere": (PLAIN, 6, 6, "", {"y": ("y = Reshape(o, join)", "u = ReduceSum(p) w = Reshape(o, join) y = Add(u, w)")}, ""),
    "no scale": (PLAIN.replace("half", "none"), 6, 6, "", {}, "is not a product of queries and keys"),
    "heads by another way": (PLAIN, 6, 6, "", {"v": ("h = Transpose <perm = [0, 2, 1, 3]> (vr)", "g = Transpose <perm = [0, 2, 1, 3]> (vr) h = Neg(g)")}, "h is not split from rows"),
    "a mask with a score for nothing": (MASKED, 512, 512, ", bool[2,1,512,512] keep", {"m": ("m = Where(keep, zero, low)", "m = Cast <to = 1> (keep) i = Log(m)"), "a": ("Add(z, m)", "Add(z, i)")}, "mask"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "queries", "keys", "more", "swap", "why"), DECLINED.values(), ids=DECLINED
)
def test_chains_that_stay(
    scores: str,
    queries: object,
    keys: object,
    more: str,
    swap: dict[str, tuple[str, str]],
    why: str,
) -> None:
    text = {name: (old, new.replace("other", "split")) for name, (old, new) in swap.items()}
    done = chain(scores, queries, keys, more, **text)
    assert "MultiHeadAttention" not in done.ops and done.count("Softmax") == 1
    assert "com.microsoft" not in done.program.opsets
    assert why in done.declined


def test_narrow_heads_stay() -> None:
    text = f"g ({ROWS.format(6, 6)}) => (float[2,6,64] y) {NUMBERS.replace('2, 32', '4, 16')} {{ {SPLIT} {PLAIN} {JOIN} }}"
    done = apply(model_of(text, opset=17), "raise-for-onnxruntime")
    assert done.count("Softmax") == 1 and "heads 32 wide, and these are 16" in done.declined


def test_halves_stay() -> None:
    body = f"{SPLIT} {SCALES['none'][0]} {JOIN}"
    text = (
        f"g ({ROWS.format(6, 6)}) => (float[2,6,8] y) {NUMBERS.split(', float')[0]}> {{ {body} }}"
    )
    done = apply(model_of(text.replace("float[", "float16["), opset=17), "raise-for-onnxruntime")
    assert done.count("Softmax") == 1 and "for f16" in done.declined


def of_attention(
    rows: object,
    attributes: str = "q_num_heads = 2, kv_num_heads = 2",
    more: str = "",
    last: str = "",
    out: str = "y",
    opset: int = 23,
) -> Done:
    text = f"g ({ROWS.format(rows, rows)}{more}) => (float[2,{rows},64] y) {{ {out} = Attention <{attributes}> (x, k, v{last}) }}"
    return apply(model_of(text, opset=opset), "raise-for-onnxruntime", "remove-unused")


@pytest.mark.parametrize("scale", ["", ", scale = 0.25"])
def test_attention_of_many_rows(scale: str) -> None:
    done = of_attention(384, f"q_num_heads = 2, kv_num_heads = 2{scale}")
    assert done.ops == ["MultiHeadAttention"]
    done.prove()


ATTENTION = {
    "few rows": (of_attention, {"rows": 383}, "from 384 rows on, not at 383"),
    "unknown rows": (of_attention, {"rows": "S"}, "it has S: --fix-dim"),
    "a mask": (of_attention, {"rows": 384, "more": ", float[384,384] m", "last": ", m"}, "with a mask Attention is as fast"),
    "causal": (of_attention, {"rows": 384, "attributes": "q_num_heads = 2, kv_num_heads = 2, is_causal = 1"}, "with a mask Attention is as fast"),
    "a softcap": (of_attention, {"rows": 384, "attributes": "q_num_heads = 2, kv_num_heads = 2, softcap = 5.0"}, "no softcap"),
    "its own precision": (of_attention, {"rows": 384, "attributes": "q_num_heads = 2, kv_num_heads = 2, softmax_precision = 1"}, "no precision"),
    "scores read too": (of_attention, {"rows": 384, "out": "y, , , w"}, "no second result"),
    "a scale of 0": (of_attention, {"rows": 384, "attributes": "q_num_heads = 2, kv_num_heads = 2, scale = 0.0"}, "a scale of 0"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "options", "why"), ATTENTION.values(), ids=ATTENTION)
def test_attention_that_stays(make, options, why) -> None:  # type: ignore[no-untyped-def]
    done = make(**options)
    assert done.ops == ["Attention"] and why in done.declined
    assert "com.microsoft" not in done.program.opsets


def test_groups_of_queries_stay() -> None:
    text = "g (float[2,384,64] x, float[2,384,32] k, float[2,384,32] v) => (float[2,384,64] y) { y = Attention <q_num_heads = 2, kv_num_heads = 1> (x, k, v) }"
    done = apply(model_of(text, opset=23), "raise-for-onnxruntime")
    assert done.ops == ["Attention"] and "no groups of queries" in done.declined


def test_heads_stay() -> None:
    text = "g (float[2,2,384,32] x) => (float[2,2,384,32] y) { y = Attention (x, x, x) }"
    done = apply(model_of(text, opset=23), "raise-for-onnxruntime")
    assert done.ops == ["Attention"] and "are not rows" in done.declined


TANH = "p = Pow(x, three) m = Mul(p, k) a = Add(x, m) u = Mul(a, s) t = Tanh(u) o = Add(t, one) h = Mul(x, half) y = Mul(h, o)"
GELU = "g (float[2,S] x{0}) => (float[2,S] y) <float three = {{3}}, float k = {{0.044715}}, float s = {{0.7978845608}}, float one = {{1}}, float half = {{0.5}}> {{ {1} }}"


@pytest.mark.parametrize("opset", [13, 19])
def test_fast_gelu(opset: int) -> None:
    done = apply(
        model_of(GELU.format("", TANH), opset=opset), "raise-for-onnxruntime", "remove-unused"
    )
    assert done.ops == ["FastGelu"]
    done.prove()


@pytest.mark.parametrize(
    ("body", "opset"), [(TANH, 20), (TANH.replace("Add(t, one)", "Sub(t, one)"), 17)]
)
def test_no_fast_gelu(body: str, opset: int) -> None:
    assert (
        "Tanh" in apply(model_of(GELU.format("", body), opset=opset), "raise-for-onnxruntime").ops
    )
