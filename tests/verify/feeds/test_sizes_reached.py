"""onnxgrad/verify/feeds/sizes_reached.py: integers that decide sizes are not drawn wide."""

from __future__ import annotations

import pytest

from onnxgrad import verify
from onnxgrad.verify.feeds.data_flow import DataFlow
from onnxgrad.verify.feeds.sizes_reached import decides_sizes
from tests.helpers import parse

_LOOP = "<body = b (int64 t, bool go, {more}float[2] s) => (bool on, {next}float[2] r) {{ {body} r = Tanh (s) }}>"
_NUMBERS = "<int64 zero = {0}, int64 one = {1}, int64 five = {5}, float[2] onoff = {0, 1}, float[5] table = {0, 1, 2, 3, 4}, bool true = {1}>"
_TURNS = _LOOP.format(more="", next="", body="on = Identity (go)")
_WHILE = _LOOP.format(
    more="int64 a, ", next="int64 a2, ", body="a2 = Sub (a, one) on = Greater (a2, zero)"
)
# body of the graph with an integer n of one element, and y
DECIDES = {
    "the square of a size": "m = Mul (n, n) y = Expand (x, m)",
    "a sum of sizes": "m = Add (n, k) y = ConstantOfShape (m)",
    "a target shape": "a = Abs (n) m = Concat <axis = 0> (a, k) y = Reshape (x, m)",
    "repeats": "m = Mul (n, k) y = Tile (x, m)",
    "an index": "m = Mul (n, k) y = Gather (table, m)",
    "a bound": "m = Add (n, k) y = Slice (table, k, m)",
    "a depth": "m = Mul (n, k) d = Squeeze (m) y = OneHot (k, d, onoff)",
    "turns": "m = Mul (n, n) s = Squeeze (m) y = Loop (s, true, x) " + _TURNS,
    "when a loop ends": "m = Squeeze (n) w, y = Loop (, true, m, x) " + _WHILE,
    "behind an If": "c = Equal (k, k) d = Squeeze (c) m = If (d) <then_branch = t () => (int64[1] p) { p = Mul (n, n) }, else_branch = e () => (int64[1] q) { q = Abs (n) }> y = Expand (x, m)",
}  # fmt: skip
VALUES = {
    "arithmetic": "m = Mul (n, n) y = Add (m, k)",
    "the size of a result": "m = Mul (n, n) s = Shape (m) y = Expand (x, s)",
    "a comparison": "c = Greater (n, k) i = Cast <to = 7> (c) y = Gather (table, i)",
    "a remainder": "i = Mod (n, five) y = Gather (table, i)",
    "a place": "i = ArgMax (n) y = Gather (table, i)",
    "clipped": "i = Clip (n, zero, five) m = Mul (i, i) y = ConstantOfShape (m)",
}


def _flow(body: str) -> DataFlow:
    return DataFlow(
        parse(f"g (int64[1] n, int64[1] k, float[2] x) => (float y) {_NUMBERS} {{ {body} }}")
    )


@pytest.mark.parametrize("name", DECIDES)
def test_what_decides_sizes(name: str) -> None:
    assert decides_sizes(_flow(DECIDES[name]), "n")


@pytest.mark.parametrize("name", VALUES)
def test_what_is_only_a_value(name: str) -> None:
    assert not decides_sizes(_flow(VALUES[name]), "n")


def test_through_a_local_function() -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "f": 1]>
        g (int64[1] n, float x) => (float[N] y) { m = f.square (n) y = Expand (x, m) }
        <domain: "f", opset_import: ["": 20]> square (a) => (b) { b = Mul (a, a) }"""
    assert decides_sizes(DataFlow(parse(text)), "n")


def test_many_turns_are_not_tried() -> None:
    """Else 2**30 turns take the time of the whole proof, and nothing is proved."""
    model = parse(f"g (int64[1] n, float[2] x) => (float[2] y) {_NUMBERS} {{ {DECIDES['turns']} }}")
    report = verify(model, model, timeout=60)
    assert report.ok and report.seconds < 30


def test_a_case_at_which_onnxruntime_dies_is_left_out() -> None:
    """The least integer divided by -1 ends the process."""
    model = parse("g (int64[6] i) => (int64[6] y) <int64 m = {-1}> { y = Div (i, m) }")
    report = verify(model, model)
    assert report.ok
    assert any(note.startswith("left out: seed 0 with wide values 3") for note in report.notes)
