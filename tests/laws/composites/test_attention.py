"""onnxgrad/laws/composites/attention.py and what it reads: scores, scales, masks, groups of heads, rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify import run
from tests.helpers import unindented
from tests.laws.composites.chains import raised
from tests.rewriting import Done

LOWEST = float(np.finfo(np.float32).min)
NUMBERS = f"""<float c = {{0.5}}, float r = {{0.70710677}}, float two = {{2}}, float zero = {{0}}, float low = {{{LOWEST!r}}},
    float inf = {{-inf}}, float some = {{-10000}}, int64[1] at2 = {{2}}>"""
HEADS = "(float[2,4,S,4] q, float[2,4,T,4] k, float[2,4,T,4] v{0}) => (float[2,4,S,4] y)"
PLAIN = "t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, t) {0} p = Softmax <axis = -1> ({1}) y = MatMul(p, v)"
BOOL = ", bool[2,1,S,T] keep"
CAUSAL = np.where(np.tri(5), 0, LOWEST).astype(np.float32)


def heads(between: str, last: str, more: str = "", **options: Any) -> Done:
    body = PLAIN.format(between, last)
    return raised(f"g {HEADS.format(more)} {NUMBERS} {{ {body} }}", **options)


def only(done: Done, *others: str) -> str:
    """The one Attention of the result, as text after the equals sign."""
    (found,) = [str(b).split(" = ", 1)[1] for b in done.block.bindings if b.op == "Attention"]
    assert sorted(set(done.ops) - {"Attention"}) == sorted(others)
    done.prove()
    return found


SCALES = {
    "none": ("", "s", 1.0),
    "times": ("z = Mul(s, c)", "z", 0.5),
    "over": ("z = Div(s, two)", "z", 0.5),
    "twice": ("w = Mul(c, s) z = Div(w, two)", "z", 0.25),
}


@pytest.mark.parametrize(("between", "last", "scale"), SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("opset", [23, 24, 25])
def test_scales_of_scores(between: str, last: str, scale: float, opset: int) -> None:
    done = heads(between, last, opset=opset)
    assert only(done) == f"Attention(q, k, v, scale={scale:g})"


@pytest.mark.parametrize("number", ["-0.5", "-1", "1e-46"])
def test_scales_that_onnxruntime_does_not_load(number: str) -> None:
    done = heads("z = Mul(s, d)", "z", constants={"d": np.float32(number)})
    assert "Attention" not in done.ops
    done.prove()


def test_a_scale_of_rows_that_would_turn_the_sign() -> None:
    """A factor of the queries' rows is not taken into a scale that would be negative."""
    text = f"g {ROWS.format(16)} {SPLIT.format(4, DIRECT, 'o = MatMul(p, vh)')}"
    turned = text.replace("{ a = Reshape(q, ", "{ n = Mul(q, minus) a = Reshape(n, ")
    done = raised(turned, {"minus": np.float32(-0.5)})
    assert done.counts["Attention"] == 1 and done.counts["Mul"] == 1
    done.prove()


def test_scales_of_queries_and_keys() -> None:
    """PyTorch multiplies both by the root of the scale, the keys after they are transposed."""
    body = "t = Transpose <perm = [0, 1, 3, 2]> (k) a = Mul(q, r) b = Mul(t, r) s = MatMul(a, b) p = Softmax <axis = 3> (s) y = MatMul(p, v)"
    done = raised(f"g {HEADS.format('')} {NUMBERS} {{ {body} }}")
    assert only(done) == "Attention(q, k, v, scale=0.5)"


def test_keys_transposed_as_a_stack_of_matrices() -> None:
    body = """m = Reshape(k, stack) u = Transpose <perm = [0, 2, 1]> (m) t = Reshape(u, back)
        s = MatMul(q, t) p = Softmax <axis = -1> (s) y = MatMul(p, v)"""
    text = f"g {HEADS.format('')} <int64[3] stack = {{8, 6, 4}}, int64[4] back = {{2, 4, 4, 6}}> {{ {body} }}"
    assert only(raised(text.replace("T,4", "6,4"))) == "Attention(q, k, v, scale=1)"
    other = text.replace("T,4", "6,4").replace("stack = {8, 6, 4}", "stack = {8, 4, 6}")
    stays = other.replace("perm = [0, 2, 1]", "perm = [0, 1, 2]")
    assert "Softmax" in raised(stays).ops


OPEN = """h = Shape({0}) lead = Slice(h, first, end) n = Slice(h, end, last) w = Slice(h, last, most)
    stack = Concat <axis = 0> (rest, n, w) m = Reshape(k, stack) u = Transpose <perm = [0, 2, 1]> (m)
    back = Concat <axis = 0> (lead, w, n) t = Reshape(u, back) s = MatMul(q, t) p = Softmax <axis = -1> (s) y = MatMul(p, v)"""


@pytest.mark.parametrize(("like", "found"), [("k", "Attention"), ("q", "Softmax")])
def test_keys_of_open_sizes_transposed_as_a_stack_of_matrices(like: str, found: str) -> None:
    """PyTorch's exporter writes this for any scaled_dot_product_attention of open sizes."""
    head = HEADS.format("").replace("[2,4", "[B,H")
    bounds = "int64[1] first = {-9223372036854775808}, int64[1] end = {-2}, int64[1] last = {-1}, int64[1] most = {99}"
    done = raised(f"g {head} <{bounds}, int64[1] rest = {{-1}}> {{ {OPEN.format(like)} }}")
    assert found in done.ops and ("Softmax" in done.ops) == (found == "Softmax")
    if like == "k":
        done.prove()


@pytest.mark.parametrize("other", ["Neg", "Relu", "Exp"])
@pytest.mark.parametrize("behind", [True, False])
def test_keys_that_something_else_changes_around_their_transpose(other: str, behind: bool) -> None:
    """Only reshapes around the transpose leave the keys as they are."""
    after, before = (other, "Reshape") if behind else ("Reshape", other)
    body = f"""m = {before}(k{", same" if behind else ""}) u = Transpose <perm = [0, 1, 3, 2]> (m)
        t = {after}(u{"" if behind else ", back"}) s = MatMul(q, t) p = Softmax <axis = -1> (s) y = MatMul(p, v)"""
    shapes = "<int64[4] same = {2, 4, 6, 4}, int64[4] back = {2, 4, 4, 6}>"
    done = raised(f"g {HEADS.format('')} {shapes} {{ {body} }}".replace("T,4", "6,4"))
    assert other in done.ops
    done.prove()


MASKS = {
    "of true and false, lowest": ("m = Where(keep, zero, low) z = Add(s, m)", BOOL, ["Where"]),
    "moderate": ("m = Where(keep, zero, some) z = Add(m, s)", BOOL, ["Where"]),
    "replaced": ("z = Where(keep, s, low)", BOOL, ["Where"]),
    "replaced where true": ("z = Where(keep, low, s)", BOOL, ["Where"]),
    "a row for all queries": ("m = Where(keep, zero, low) z = Add(s, m)", ", bool[2,1,1,T] keep", ["Concat", "Expand", "Shape", "Where"]),
    "in front of the softmax, scaled before": ("w = Mul(s, c) m = Where(keep, zero, low) z = Add(w, m)", BOOL, ["Where"]),
    "of true and false, one minus": ("b = Cast <to = 1> (keep) o = Sub(two, b) m = Mul(o, some) z = Add(s, m)", BOOL, ["Cast", "Mul", "Sub"]),
}  # fmt: skip


@pytest.mark.parametrize(("between", "more", "others"), MASKS.values(), ids=MASKS)
def test_masks(between: str, more: str, others: list[str]) -> None:
    """The proof feeds rows in which nothing is left as well: see the next test."""
    only(heads(between, "z", more), *others)


@pytest.mark.parametrize("between", [MASKS["replaced"][0], MASKS["of true and false, lowest"][0]])
def test_rows_without_anything_are_as_before(between: str) -> None:
    """They are uniform; in onnxruntime's Attention they would be 0 for the lowest number."""
    done = heads(between, "z", BOOL)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {n: rng.standard_normal((2, 4, 3, 4), np.float32) for n in "qkv"}
    feeds["keep"] = np.ones((2, 1, 3, 3), bool)
    feeds["keep"][1, 0, 1] = False
    want, got = (run(m, feeds)["y"] for m in (done.before, done.after))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1, :, 1], feeds["v"][1].mean(axis=1), rtol=1e-5, atol=1e-6)


REPAIRED = PLAIN.replace("y = MatMul(p, v)", "n = IsNaN(p) w = Where(n, zero, p) y = MatMul(w, v)")


def test_rows_without_anything_that_are_zeros() -> None:
    """PyTorch writes scaled_dot_product_attention so."""
    body = REPAIRED.format("m = Where(keep, zero, inf) z = Add(s, m)", "z")
    done = raised(f"g {HEADS.format(BOOL)} {NUMBERS} {{ {body} }}")
    assert only(done, "Where") == "Attention(q, k, v, m, scale=1)"
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {n: rng.standard_normal((2, 4, 3, 4), np.float32) for n in "qkv"}
    feeds["keep"] = np.ones((2, 1, 3, 3), bool)
    feeds["keep"][1, 0, 1] = False
    want, got = (run(m, feeds)["y"] for m in (done.before, done.after))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert not got[1, :, 1].any()


def test_a_constant_mask() -> None:
    constants = {"m": CAUSAL}
    text = f"g {HEADS.format('')} {NUMBERS} {{ {PLAIN.format('z = Add(s, m)', 'z')} }}"
    text = text.replace("S,4", "5,4").replace("T,4", "5,4")
    assert only(raised(text, constants)) == "Attention(q, k, v, m, scale=1)"
    dead = {"m": np.where(np.tri(5, k=-1), 0, LOWEST).astype(np.float32)}
    done = raised(text, dead)
    assert "Softmax" in done.ops and "masks a whole row" in done.declined


def test_a_constant_mask_beside_another() -> None:
    text = f"g {HEADS.format(BOOL)} {NUMBERS} {{ {PLAIN.format('m = Where(keep, zero, low) w = Add(s, m) z = Add(w, causal)', 'z')} }}"
    text = (
        text.replace("S", "5").replace("T,4", "5,4").replace("5,T", "5,5").replace("5oft", "Soft")
    )
    done = raised(text, {"causal": CAUSAL})
    only(done, "Where", "Add")
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {n: rng.standard_normal((2, 4, 5, 4), np.float32) for n in "qkv"}
    feeds["keep"] = np.ones((2, 1, 5, 5), bool)
    feeds["keep"][1, 0, :, :2] = False  # two rows of the second member have nothing left
    want, got = (run(m, feeds)["y"] for m in (done.before, done.after))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


FLOAT = ", float[2,1,S,T] keep"
STAY = {
    "a mask of the caller's": ("z = Add(s, keep)", FLOAT, "its mask keep may mask a whole row"),
    "such a mask in front": ("z = Add(keep, s)", FLOAT, "its mask keep may mask a whole row"),
    "-inf": ("m = Where(keep, zero, inf) z = Add(s, m)", BOOL, "is NaN, in Attention it is 0"),
    "replaced by -inf": ("z = Where(keep, s, inf)", BOOL, "is NaN, in Attention it is 0"),
    "replaced by little": ("z = Where(keep, s, some)", BOOL, "not surely below the others"),
    "scaled after the mask": ("m = Where(keep, zero, low) w = Add(s, m) z = Mul(w, c)", BOOL, "not a product of queries and keys"),
    "a root": ("z = Sqrt(s)", "", "not a product of queries and keys"),
    "two masks": ("m = Where(keep, zero, low) w = Add(s, m) o = Where(also, zero, low) z = Add(w, o)", BOOL + ", bool[2,1,S,T] also", "two masks"),
    "one number for all keys": ("m = Where(keep, zero, low) z = Add(s, m)", ", bool[2,1,S,1] keep", "a number for each key"),
}  # fmt: skip


@pytest.mark.parametrize(("between", "more", "reason"), STAY.values(), ids=STAY)
def test_what_means_something_else_stays(between: str, more: str, reason: str) -> None:
    done = heads(between, "z", more)
    assert "Attention" not in done.ops and reason in done.declined
    done.prove()


def test_weights_that_others_read_stay() -> None:
    text = f"g {HEADS.format('')} {NUMBERS} {{ {PLAIN.format('', 's')} }}"
    done = raised(text.replace("S,4] y)", "S,4] y, float[2,4,S,T] p)"))
    assert "Attention" not in done.ops
    done = raised(text.replace("S,4] y)", "S,4] y, float[2,4,S,T] s)"))
    assert "Attention" in done.ops  # the product is wanted itself, and computed as before
    done.prove()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("float", "double", "no Attention for f64"),
        ("float[2,4,T,4] k", "float[1,4,T,4] k", "one batch"),
        ("float[2,4,T,4] v", "float[2,1,T,4] v", "same heads"),
        ("[0, 1, 3, 2]", "[0, 1, 2, 3]", "not the transpose of keys"),
        ("float[2,4,", "float[0,4,", "which is empty"),
        ("4,S,4] q", "4,0,4] q", "which is empty"),
    ],
)
def test_operands_that_do_not_fit(old: str, new: str, reason: str) -> None:
    text = f"g {HEADS.format('')} {NUMBERS} {{ {PLAIN.format('', 's')} }}".replace(old, new)
    done = raised(text.replace("T,4", "4,4").replace("S,4", "4,4") if "0, 1" in old else text)
    assert "Attention" not in done.ops and reason in done.declined


def test_an_older_opset_is_told() -> None:
    assert "Attention needs opset 23, the model has 22" in heads("", "s", opset=22).declined


ROWS = "(float[B,S,16] q, float[B,T,{0}] k, float[B,T,{0}] v) => (float[B,S,16] y)"
SPLIT = """<int64[4] h4 = {{0, 0, 4, 4}}, int64[4] hk = {{0, 0, {0}, 4}}, int64[3] whole = {{0, 0, 16}}, int64[2] flat = {{-1, 16}}>
    {{ a = Reshape(q, h4) qh = Transpose <perm = [0, 2, 1, 3]> (a) b = Reshape(k, hk) d = Reshape(v, hk)
       vh = Transpose <perm = [0, 2, 1, 3]> (d) {1} s = MatMul(qh, t) p = Softmax <axis = -1> (s) {2}
       j = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(j, whole) }}"""
DIRECT = "t = Transpose <perm = [0, 2, 3, 1]> (b)"


def test_heads_of_rows() -> None:
    done = raised(f"g {ROWS.format(16)} {SPLIT.format(4, DIRECT, 'o = MatMul(p, vh)')}")
    assert done.text == unindented("""
        g(q: f32[B,S,16], k: f32[B,T,16], v: f32[B,T,16]) {
          y: f32[B,S,16] = Attention(q, k, v, kv_num_heads=4, q_num_heads=4, scale=1)
          return y
        }
    """)
    done.prove()


NORMAL = (
    "<float[4] w = {1.0, 0.5, 2.0, -1.0}, int64[4] h4 = {0, 0, 4, 4}, int64[3] whole = {0, 0, 16}>"
)
NORMALISED = f"""g {ROWS.format(16)} {NORMAL} {{
    a = Reshape(q, h4) n = RMSNormalization(a, w) qh = Transpose <perm = [0, 2, 1, 3]> (n)
    b = Reshape(k, h4) m = RMSNormalization(b, w) kh = Transpose <perm = [0, 2, 1, 3]> (m)
    c = Reshape(v, h4) vh = Transpose <perm = [0, 2, 1, 3]> (c)
    o = Attention(qh, kh, vh) j = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(j, whole) }}"""


def test_rows_of_heads_that_are_normalised() -> None:
    """Qwen3 normalises each head's queries and keys between split and transpose."""
    done = raised(NORMALISED)
    assert done.counts["Transpose"] == 0 and done.counts["Reshape"] == 4
    assert "q_num_heads=4" in done.text
    done.prove()


OTHERS = {
    "read elsewhere": ("y = Reshape(j, whole)", "z = Neg(qh) y = Reshape(j, whole)"),
    "another transpose": ("qh = Transpose <perm = [0, 2, 1, 3]> (n)", "e = Transpose <perm = [2, 0, 1, 3]> (n) qh = Transpose <perm = [1, 0, 2, 3]> (e)"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), OTHERS.values(), ids=OTHERS)
def test_normalised_heads_that_stay(old: str, new: str) -> None:
    done = raised(
        NORMALISED.replace(old, new).replace(
            "=> (float[B,S,16] y)",
            "=> (float[B,S,16] y, float[B,4,S,4] z)" if "z =" in new else "=> (float[B,S,16] y)",
        )
    )
    assert "q_num_heads" not in done.text and "not split from rows" in done.declined
    done.prove()


def test_rows_that_are_joined_further() -> None:
    text = f"g {ROWS.format(16)} {SPLIT.format(4, DIRECT, 'o = MatMul(p, vh)')}"
    done = raised(
        text.replace("(j, whole)", "(j, flat)").replace("=> (float[B,S,16]", "=> (float[N,16]")
    )
    assert done.ops == ["Attention", "Reshape"]
    done.prove()
    stays = raised(
        text.replace("{0, 0, 16}", "{0, 4, -1}").replace("=> (float[B,S,16]", "=> (float[B,4,M]")
    )
    assert "not joined to rows" in stays.declined and "Transpose" in stays.ops
    stays.prove()


GROUPS = """kt = Transpose <perm = [0, 2, 1, 3]> (b) ku = Unsqueeze(kt, at2) ke = Expand(ku, more) kh = Reshape(ke, joined)
    vu = Unsqueeze(vh, at2) ve = Expand(vu, more) vv = Reshape(ve, joined) t = Transpose <perm = [0, 1, 3, 2]> (kh)"""
GROUPED = SPLIT.replace(
    "<int64[4] h4",
    "<int64[1] at2 = {{2}}, int64[5] more = {{3, 2, 2, 5, 4}}, int64[4] joined = {{3, 4, 5, 4}}, int64[4] h4",
)


def grouped(k: int = 2, groups: str = GROUPS) -> str:
    text = f"g {ROWS.format(4 * k)} {GROUPED.format(k, groups, 'o = MatMul(p, vv)')}"
    return text.replace("B,", "3,").replace("T,", "5,")


def test_groups_of_heads() -> None:
    done = raised(grouped())
    assert only(done) == "Attention(q, k, v, kv_num_heads=2, q_num_heads=4, scale=1)"


def test_heads_that_alternate_are_no_groups() -> None:
    """Repeated the other way round: 0, 1, 0, 1 in place of 0, 0, 1, 1."""
    text = grouped().replace("at2 = {2}", "at2 = {1}").replace("{3, 2, 2, 5, 4}", "{3, 2, 2, 5, 4}")
    done = raised(text)
    assert "kv_num_heads=2" not in done.text
    done.prove()


def test_groups_of_an_attention_that_is_there() -> None:
    text = """g (float[2,4,S,4] q, float[2,2,5,4] k, float[2,2,5,4] v) => (float[2,4,S,4] y)
        <int64[1] at2 = {2}, int64[5] more = {2, 2, 2, 5, 4}, int64[4] joined = {2, 4, 5, 4}> {
        ku = Unsqueeze(k, at2) ke = Expand(ku, more) kh = Reshape(ke, joined)
        vu = Unsqueeze(v, at2) ve = Expand(vu, more) vh = Reshape(ve, joined)
        y = Attention <is_causal = 1> (q, kh, vh) }"""
    assert only(raised(text)) == "Attention(q, k, v, is_causal=1)"
    one = raised(
        text.replace(
            "y = Attention <is_causal = 1> (q, kh, vh)", "y = Attention (q, kh, vh, , kh, vh)"
        )
    )
    assert one.count("Expand") == 2  # with keys and values of the past it is another operator


def test_gradients_of_what_was_raised() -> None:
    text = f"g {ROWS.format(16)} {SPLIT.format(4, DIRECT, 'o = MatMul(p, vh)')}".replace("B,", "2,")
    done = raised(text.replace("S,", "3,").replace("T,", "5,"))
    assert done.ops == ["Attention"]
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal((2, m, 16), np.float32)
        for n, m in (("q", 3), ("k", 5), ("v", 5), ("y_grad", 3))
    }
    want, got = (
        run(gradient(m, ["q", "k", "v"], "y", adjoint="input"), feeds)
        for m in (done.before, done.after)
    )
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5)


def test_keys_and_values_of_the_past_stay_operands() -> None:
    """What is kept for the next call is the joined keys and values themselves."""
    text = """g (float[1,4,1,4] q, float[1,4,1,4] k, float[1,4,1,4] v, float[1,4,P,4] pk, float[1,4,P,4] pv)
        => (float[1,4,1,4] y, float[1,4,T,4] nk, float[1,4,T,4] nv) <float c = {0.5}> {
        nk = Concat <axis = 2> (pk, k) nv = Concat <axis = 2> (pv, v) t = Transpose <perm = [0, 1, 3, 2]> (nk)
        s = MatMul(q, t) z = Mul(s, c) p = Softmax <axis = -1> (z) y = MatMul(p, nv) }"""
    done = raised(text)
    assert done.ops == ["Concat", "Concat", "Attention"]
    done.prove()


def test_halves_stay() -> None:
    """The operator rounds them elsewhere than the chain: two units in the last place in the suite's
    test_attention_4d_causal_fp16_expanded.
    """
    body = PLAIN.format("", "s")
    done = raised(f"g {HEADS.format('')} {{ {body} }}".replace("float[", "float16["))
    assert "Attention" not in done.ops and "rounds differently" in done.declined


@pytest.mark.parametrize(
    "mask", ["T", "1,T", "2,T", "M,T", "S,T", "1,1,T", "2,1,M,T", "2,1,1,T", "4,S,T"]
)
def test_rows_of_a_mask(mask: str) -> None:
    """One for each query, or one for all; others may be any number."""
    done = heads("m = Where(keep, zero, low) z = Add(s, m)", "z", f", bool[{mask}] keep")
    rows = mask.split(",")[-2] if "," in mask else "1"
    assert ("Attention" in done.ops) == (rows in ("1", "S")), done.declined
    assert rows in ("1", "S") or "have a row for each query" in done.declined
