"""Open sizes that are 1 in the file: an axis of 1 broadcasts, or is as long as the size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.transform.open_sizes import open_dimensions
from onnxgrad.verify import feeds_for, run
from tests.helpers import parse


def picture(n: int) -> str:
    """Convolutions, a residual and squeeze-and-excitation, whose axes of 1 are always 1."""
    return f"""g (float[1,2,{n},6] x) => (float[1,2,{n},6] y) <float[2,2,3,3] w = {{{", ".join(["0.1"] * 36)}}}, float[2,2,1,1] v = {{1,2,3,4}}> {{
      c = Conv <pads = [1,1,1,1]> (x, w)  r = Relu (c)  p = GlobalAveragePool (r)  e = Conv (p, v)  s = Sigmoid (e)
      m = Mul (r, s)  y = Add (m, x) }}"""


def attention(n: int) -> str:
    return f"""g (float[1,{n},4] x) => (float[1,{n},4] y) <float[4,4] w = {{{", ".join(map(str, range(16)))}}}, int64[1] axes = {{-1}}> {{
      q = MatMul (x, w)  t = Transpose <perm = [0,2,1]> (x)  a = MatMul (q, t)  s = Softmax (a)  o = MatMul (s, x)
      r = Add (o, x)  m = ReduceMean (r, axes)  y = Sub (r, m) }}"""


def recurrent(n: int) -> str:
    return f"""g (float[{n},2,3] x) => (float[{n},1,2,4] y) <float[1,12,3] w = {{{", ".join(["0.3"] * 36)}}}, float[1,12,4] r = {{{", ".join(["0.2"] * 48)}}}> {{
      y = GRU <hidden_size = 4> (x, w, r) }}"""


def parts(n: int) -> str:
    """A size that is 1 in the file, computed from one that is not."""
    return f"""g (float[1,{n + 1}] x) => (float[1,{n}] y) <int64[1] a = {{0}}, int64[1] e = {{-1}}, int64[1] k = {{1}}> {{
      s = Slice (x, a, e, k)  y = Mul (s, s) }}"""


OPENED: dict[str, tuple[Callable[[int], str], str, Sequence[str]]] = {
    "a picture": (picture, "x.2", ()), "attention": (attention, "x.1", ()), "recurrent": (recurrent, "x.0", ()), "parts": (parts, "x.1", ()),
    "a Reshape": (lambda n: f"""g (float[1,{n},4] x) => (float[1,2,{n},2] y) <int64[4] s = {{1,{n},2,2}}> {{
        r = Reshape (x, s)  y = Transpose <perm = [0,2,1,3]> (r) }}""", "x.1", ["*"]),
    "a bias": (lambda n: f"g (float[1,{n},2] x) => (float[1,{n},2] y) <float[1,1,2] b = {{1,2}}> {{ y = Add (x, b) }}", "x.1", ["y"]),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n in ("attention", "a bias") else pytest.param(n, marks=pytest.mark.slow) for n in OPENED]
)  # fmt: skip
def test_the_same_model_written_for_other_sizes(name: str) -> None:
    text, place, follow = OPENED[name]
    if follow:
        with pytest.raises(InputError, match="and the model works with both"):
            open_dimensions(load_own(parse(text(1))), {"n": [place]})
    done = open_dimensions(load_own(parse(text(1))), {"n": [place]}, follow)
    opened = to_proto(done.program, weights=True)
    onnx.checker.check_model(opened, full_check=True)
    for n in (1, 4):
        original = parse(text(n))
        feeds = feeds_for(original, seed=0)
        for key, expected in run(original, feeds).items():
            found = np.asarray(run(opened, feeds)[key])
            np.testing.assert_array_equal(found, np.asarray(expected))


REFUSED = {
    "positions or a bias": (
        "g (float[1,1,4] x) => (float[1,1,4] y) <float[1,1,4] p = {1,2,3,4}> { y = Add (x, p) }", ["*"],
        r"Add 'y'.*'p' of size 1 or 'p' of size n on axis 1, and the model works with both: pass follow=\['y'\] for 'p' of size 1, compare"),
    "a weight": ("g (float[2,1] x) => (float[2,3] y) <float[1,3] w = {1,2,3}> { y = MatMul (x, w) }", [], "constant 'w'.*holds one position on axis 0"),
    "an axis that is removed": ("g (float[2,1] x) => (float[2] y) <int64[1] a = {1}> { y = Squeeze (x, a) }", [], "Squeeze.*it removes axis 1, whose size n is open"),
    "the first or the last": ("g (float[2,1] x) => (float[2] y) <int64 i = {0}> { y = Gather <axis = 1> (x, i) }", [], "index 0 or index -1"),
    "copies": ("g (float[2,1] x) => (float[2,4] y) <int64[2] s = {2,4}> { y = Expand (x, s) }", [], "Expand.*it expands axis 1"),
    "a row for each": ("g (float[2,1] x) => (float[2,3] y) <float[2,3] t = {1,2,3,4,5,6}> { y = Add (x, t) }", [], r"Add.*must equal the size n, which is 1"),
    "one or many elements": ("g (float[2,1] x) => (float[2,1] y) <int64[2] s = {1,2}> { r = Reshape (x, s)  y = Transpose (r) }", [], "Reshape"),
    "a size that becomes 1": (  # written for a size of 2: numbers for one position, which the next size would not repeat
        "g (float[2] x) => (float[1] y) <int64[1] a = {0}, int64[1] e = {-1}, float[1] p = {0}> { s = Slice (x, a, e)  y = Mul (s, p) }", [],
        "Mul 'y'.*'p' of size 1 or 'p' of size max.n - 1, 0. on axis 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_certain_is_refused(name: str) -> None:
    text, follow, reason = REFUSED[name]
    place = {"a size that becomes 1": "x.0", "positions or a bias": "x.1"}.get(name, "x.1")
    with pytest.raises(InputError, match=reason):
        open_dimensions(load_own(parse(text)), {"n": [place]}, follow)
