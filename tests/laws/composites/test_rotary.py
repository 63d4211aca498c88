"""onnxgrad/laws/composites/rotary.py: RotaryEmbedding from its chain, over heads and over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.laws.composites.chains import raised

NUMBERS = """<int64[1] start = {0}, int64[1] half = {2}, int64[1] end = {9223372036854775807}, int64[1] last = {3}, int64[1] step = {1}, int64[1] at1 = {1}, float one = {1.5}>"""
BODY = "m = Mul(x, c) a = Slice(x, start, half, last, step) b = Slice(x, half, end, last) n = Neg(b) t = Concat <axis = -1> (n, a) u = Mul(t, s) y = Add(m, u)"
# tables of the run: angles, twice, of which cosine and sine
ANGLES = "w = Concat <axis = -1> (f, f) q = Cos(w) o = Mul(q, one) c = Unsqueeze(o, at1) v = Sin(w) p = Mul(v, one) s = Unsqueeze(p, at1)"


def tables(*lead: int, same: bool = True) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    found = {}
    for name in "cs":
        half = rng.uniform(-1, 1, (*lead, 5, 2)).astype(np.float32)
        other = half if same else rng.uniform(-1, 1, half.shape).astype(np.float32)
        found[name] = np.concatenate([half, other], axis=-1)
    return found


@pytest.mark.parametrize("lead", [(1, 1), (1,), ()])
@pytest.mark.parametrize("opset", [23, 25])
def test_constant_tables(lead: tuple[int, ...], opset: int) -> None:
    text = f"g (float[3,2,5,4] x) => (float[3,2,5,4] y) {NUMBERS} {{ {BODY} }}"
    done = raised(text, tables(*lead), opset=opset)
    assert done.ops == ["RotaryEmbedding"]
    assert all(v.shape == (3, 5, 2) for v in done.block.initializers.values())
    done.prove()


@pytest.mark.parametrize(("axis", "last"), [(3, 3), (3, -1), (-1, -1)])
def test_the_last_axis_in_either_spelling(axis: int, last: int) -> None:
    numbers = NUMBERS.replace("last = {3}", f"last = {{{last}}}")
    body = BODY.replace("axis = -1", f"axis = {axis}")
    done = raised(f"g (float[3,2,5,4] x) => (float[3,2,5,4] y) {numbers} {{ {body} }}", tables())
    assert done.ops == ["RotaryEmbedding"]


@pytest.mark.parametrize("batch", ["B", "1", "3"])
def test_tables_of_the_run(batch: str) -> None:
    text = f"g (float[{batch},2,S,4] x, float[1,S,2] f) => (float[{batch},2,S,4] y) {NUMBERS} {{ {ANGLES} {BODY} }}"
    done = raised(text)
    assert "RotaryEmbedding" in done.ops and ("Expand" in done.ops) is (batch != "1")
    done.prove()


@pytest.mark.parametrize("axis", [-1, 2])
def test_tables_for_each_of_the_batch(axis: int) -> None:
    angles = ANGLES.replace("axis = -1", f"axis = {axis}")
    text = f"g (float[B,2,S,4] x, float[B,S,2] f) => (float[B,2,S,4] y) {NUMBERS} {{ {angles} {BODY} }}"
    done = raised(text)
    assert "RotaryEmbedding" in done.ops and "Expand" not in done.ops
    done.prove()


GRAPH = "g (float[3,2,5,4] x) => (float[3,2,5,4] y)"
STAY = {
    "halves that differ": (GRAPH, BODY, tables(1, 1, same=False), "two equal halves"),
    "a table for each head": (GRAPH, BODY, tables(1, 2), "from head to head"),
    "the first half turned": (GRAPH, BODY.replace("(n, a)", "(a, n)"), tables(1, 1), None),
    "another split": (GRAPH, BODY.replace("start, half", "start, step").replace("x, half, end", "x, step, end"), tables(1, 1), "two halves in swapped order"),
    "unknown tables": (GRAPH.replace("x)", "x, float[1,1,5,4] c, float[1,1,5,4] s)", 1), BODY, {}, "not known to have two equal halves"),
    "angles that differ": ("g (float[1,2,S,4] x, float[1,S,2] f, float[1,S,2] h) => (float[1,2,S,4] y)", ANGLES.replace("(f, f)", "(f, h)") + BODY, {}, "not known to have two equal halves"),
    "three axes": (GRAPH.replace("3,2,5", "3,5"), BODY.replace("last", "at2"), tables(), "does not have the axes"),
}  # fmt: skip


@pytest.mark.parametrize(("graph", "body", "constants", "reason"), STAY.values(), ids=STAY)
def test_what_means_something_else_stays(
    graph: str, body: str, constants: dict[str, Any], reason: str | None
) -> None:
    numbers = NUMBERS.replace("int64[1] step", "int64[1] at2 = {2}, int64[1] step")
    done = raised(f"{graph} {numbers} {{ {body} }}", constants)
    assert "RotaryEmbedding" not in done.ops and (reason or "") in done.declined
    done.prove()


def test_rows_whose_heads_are_rotated() -> None:
    text = """g (float[3,5,8] q, float[3,5,8] k, float[3,5,8] v) => (float[3,5,8] y)
        <int64[4] h4 = {0, 0, 2, 4}, int64[3] whole = {0, 0, 8}> {
        a = Reshape(q, h4) qh = Transpose <perm = [0, 2, 1, 3]> (a) qr = RotaryEmbedding(qh, c, s)
        b = Reshape(k, h4) kh = Transpose <perm = [0, 2, 1, 3]> (b) kr = RotaryEmbedding(kh, c, s)
        d = Reshape(v, h4) vh = Transpose <perm = [0, 2, 1, 3]> (d)
        o = Attention(qr, kr, vh) j = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(j, whole) }"""
    halves = {name: np.repeat(t[..., :2], 3, axis=0) for name, t in tables(1).items()}
    done = raised(text, halves)
    assert [str(b).split(" = ", 1)[1] for b in done.block.bindings] == [
        "RotaryEmbedding(q, c, s, num_heads=2)",
        "RotaryEmbedding(k, c, s, num_heads=2)",
        "Attention(rotaryembedding, rotaryembedding_2, v, kv_num_heads=2, q_num_heads=2)",
    ]
    done.prove()
