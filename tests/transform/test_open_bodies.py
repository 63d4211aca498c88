"""Open sizes in the bodies of If, Loop and Scan: bit-identical with the same model written for another size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.transform.open_sizes import open_dimensions
from onnxgrad.verify import feeds_for, run
from tests.helpers import parse

GO = "go = Constant <value = bool {1}> ()"


def numbers(values: object) -> str:
    return "{" + ", ".join(map(str, np.asarray(values).reshape(-1).tolist())) + "}"


def branches(n: int) -> str:
    """One with a target, one that returns a constant, which meets the input."""
    return f"""g (float[1,{n},4] x, bool c) => (float[1,{n},4] z) <int64[4] s = {{1,{n},2,2}}, int64[3] t = {{1,{n},4}}> {{
      y = If (c) <then_branch = a () => (float[1,{n},4] p) {{ q = Reshape (x, s)  r = Tanh (q)  p = Reshape (r, t) }},
        else_branch = b () => (float[1,{n},4] o) {{ o = Constant <value = float[1,{n},4] {numbers(np.ones(4 * n))}> () }}>
      z = Add (y, x) }}"""


def filled(n: int) -> str:
    """A branch of an outer value that is computed for one size."""
    return f"""g (float[1,{n},4] x, bool c) => (float[1,{n},4] z) <int64[3] s = {{1,{n},4}}> {{ k = ConstantOfShape (s)
      y = If (c) <then_branch = a () => (float[1,{n},4] p) {{ p = Tanh (x) }}, else_branch = b () => (float[1,{n},4] r) {{ r = Neg (k) }}>
      z = Add (y, x) }}"""


def state(n: int) -> str:
    """A state that begins at zeros, and positions inside."""
    return f"""g (float[2,{n}] x, int64 k) => (float[2,{n}] y) <float[2,{n}] z = {numbers(np.zeros(2 * n))}, float[{n}] p = {numbers(np.arange(n))}> {{
      {GO}  y = Loop (k, go, z) <body = b (int64 i, bool on, float[2,{n}] s0) => (bool more, float[2,{n}] s1) {{
        more = Identity (on)  q = Add (s0, p)  s1 = Add (q, x) }}> }}"""


def runs(n: int) -> str:
    """As many runs as positions, read from the shape."""
    return f"""g (float[1,{n},4] x) => (float[{n},4] y) <float[4] z = {{0,0,0,0}}, int64 one = {{1}}, int64[1] zero = {{0}}> {{
      {GO}  sh = Shape (x)  k = Gather (sh, one)
      e, y = Loop (k, go, z) <body = b (int64 i, bool on, float[4] s0) => (bool more, float[4] s1, float[4] o) {{
        more = Identity (on)  r0 = Gather <axis = 1> (x, i)  r = Squeeze (r0, zero)  s1 = Add (s0, r)  o = Tanh (s1) }}> }}"""


def scan(n: int) -> str:
    return f"""g (float[{n},3] x) => (float[3] h, float[{n},3] y) <float[3] z = {{0,0,0}}, float[{n}] p = {numbers(np.arange(n))}> {{
      h, y = Scan <num_scan_inputs = 2, body = b (float[3] s0, float[3] v, float w) => (float[3] s1, float[3] o) {{
        q = Mul (v, w)  s1 = Add (s0, q)  o = Tanh (s1) }}> (z, x, p) }}"""


def scan_beside(n: int) -> str:
    """The open axis is not the one that is scanned, and stands elsewhere in the result."""
    return f"""g (float[6,3,{n}] x) => (float[3,{n}] h, float[3,{n},6] y) <float[3,{n}] z = {numbers(np.zeros(3 * n))}, int64[2] s = {{{n}, 3}}> {{
      h, y = Scan <num_scan_inputs = 1, scan_output_axes = [2], body = b (float[3,{n}] s0, float[3,{n}] v) => (float[3,{n}] s1, float[3,{n}] o) {{
        s1 = Add (s0, v)  t = Transpose (s1)  u = Reshape (t, s)  o = Transpose (u) }}> (z, x) }}"""


def nested(n: int) -> str:
    return f"""g (float[1,{n},4] x, bool c, int64 k) => (float[1,{n},4] y) <int64[3] m = {{1,4,{n}}}> {{
      y = If (c) <then_branch = a () => (float[1,{n},4] p) {{ {GO}
        p = Loop (k, go, x) <body = b (int64 i, bool on, float[1,{n},4] s0) => (bool more, float[1,{n},4] s1) {{ more = Identity (on)
          f = Transpose <perm = [0,2,1]> (s0)  h = Reshape (f, m)  s1 = Transpose <perm = [0,2,1]> (h) }}> }},
      else_branch = b2 () => (float[1,{n},4] r) {{ r = Neg (x) }}> }}"""


OPENED: dict[str, tuple[Callable[[int], str], str]] = {
    "branches": (branches, "x.1"), "a branch of another value": (filled, "x.1"), "a state": (state, "x.1"), "runs": (runs, "x.1"),
    "a scan": (scan, "x.0"), "a scan beside": (scan_beside, "x.2"), "a Loop in an If": (nested, "x.1"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n in ("branches", "runs") else pytest.param(n, marks=pytest.mark.slow) for n in OPENED]
)  # fmt: skip
def test_the_same_model_written_for_other_sizes(name: str) -> None:
    text, place = OPENED[name]
    done = open_dimensions(load_own(parse(text(5))), {"n": [place]}, extend={"*": ""})
    opened = to_proto(done.program, weights=True)
    onnx.checker.check_model(opened, full_check=True)
    assert "n" in [d.dim_param for v in opened.graph.output for d in v.type.tensor_type.shape.dim]
    for n in (5, 7, 9):
        original = parse(text(n))
        feeds = feeds_for(original, seed=0)
        found = run(opened, feeds)
        for key, expected in run(original, feeds).items():
            np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(expected))


A_LOOP = """g (float[1,8,4] x) => (float[M,4] y) <int64 k = {%s}, float[4] z = {0,0,0,0}, int64[1] zero = {0}> { %s
  e, y = Loop (k, go, z) <body = b (int64 i, bool on, float[4] s0) => (bool more, float[4] s1, float[4] o) { more = Identity (on)
    r0 = Gather <axis = 1> (x, i)  r = Squeeze (r0, zero)  s1 = Add (s0, r)  o = Tanh (s1) }> }"""
REFUSED = {
    "runs near the end": (A_LOOP % (7, GO), "Loop 'e'.*its number of runs, 7 of 8, may count from the end"),
    "runs of two readings": (A_LOOP % (8, GO), "Loop 'e': at other sizes it has n runs or 8 runs"),
    "a state that grows": (
        f"""g (float[1,8,4] x, int64 k) => (float[1,M,4] y) {{ {GO}
        y = Loop (k, go, x) <body = b (int64 i, bool on, float[1,K,4] s0) => (bool more, float[1,L,4] s1) {{
          more = Identity (on)  s1 = Concat <axis = 1> (s0, x) }}> }}""", "Loop 'y'.*its state 'x' changes its size from run to run"),
    "a table": (
        """g (float[1,8,2] x, bool c) => (float[1,8,2] y) <float[1,8,1] t = {1,5,2,3,9,8,7,6}> { y = If (c) <
        then_branch = a () => (float[1,8,2] p) { p = Add (x, t) }, else_branch = b () => (float[1,8,2] r) { r = Neg (x) }> }""",
        "Add 'p'.*constant 't'.*holds one value for each position"),
    "branches of other sizes": (
        """g (float[1,8,2] x, bool c) => (float[1,M,2] y) <int64[1] a = {0}, int64[1] e = {3}, int64[1] k = {1}> { y = If (c) <
        then_branch = q () => (float[1,3,2] p) { p = Slice (x, a, e, k) }, else_branch = b () => (float[1,8,2] r) { r = Neg (x) }> }""",
        "If 'y'.*the size of axis 1 of 'y' has no formula"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_certain_is_refused(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(InputError, match=reason):
        open_dimensions(load_own(parse(text)), {"n": ["x.1"]})


def test_runs_follow_because_the_user_says_so() -> None:
    done = open_dimensions(load_own(parse(A_LOOP % (8, GO))), {"n": ["x.1"]}, ["e"])
    assert done.numbers == ("8 is n",)
    original = parse((A_LOOP % (6, GO)).replace("[1,8,4]", "[1,6,4]"))
    feeds = feeds_for(original, seed=0)
    found = run(to_proto(done.program), feeds)["y"]
    assert np.array_equal(np.asarray(found), np.asarray(run(original, feeds)["y"]))
