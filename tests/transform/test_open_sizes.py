"""Sizes other than the batch: each model is written for a size, opened, and compared with itself written for others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.surgery.fixed_dims import fixed
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.transform.open_sizes import OpenedSizes, open_dimensions, other_sizes
from onnxgrad.transform.sizes.agreement import meetings
from onnxgrad.verify import feeds_for, open_session, run
from onnxgrad.verify.feeds.dims import roles
from tests.helpers import MODELS_DIR, parse

Text = Callable[[int], str]
EVERY = {"*": ""}


def numbers(values: object) -> str:
    """An array as text."""
    return "{" + ", ".join(str(v) for v in np.ravel(np.asarray(values)).tolist()) + "}"


def ints(values: object) -> str:
    return f"<value_ints = {list(np.ravel(np.asarray(values)))}>"


def attention(n: int) -> str:
    """Heads of two, positions of a table, and a causal mask."""
    mask = np.where(np.tri(n), 0.0, -1e9)
    return f"""g (int64[1,{n}] ids) => (float[1,{n},6] y)
      <float[9,6] words = {numbers(np.sin(np.arange(54.0)))}, float[30,6] table = {numbers(np.cos(np.arange(180.0)))},
       int64[1,{n}] positions = {numbers(np.arange(n))}, float[1,1,{n},{n}] mask = {numbers(mask)},
       int64[4] heads = {{1, {n}, 2, 3}}, int64[3] back = {{1, {n}, -1}}>
      {{ w = Gather (words, ids)  p = Gather (table, positions)  x = Add (w, p)  h = Reshape (x, heads)
         q = Transpose <perm = [0,2,1,3]> (h)  k = Transpose <perm = [0,2,3,1]> (h)  s = MatMul (q, k)
         m = Add (s, mask)  a = Softmax (m)  v = MatMul (a, q)  t = Transpose <perm = [0,2,1,3]> (v)  y = Reshape (t, back) }}"""


def every_pair_of_pixels(n: int) -> str:
    """Height and width are one axis, and two again; equal in the file."""
    return f"""g (float[1,2,{n},{n + 4}] x) => (float[1,2,{n},{n + 4}] y)
      <int64[3] flat = {{1, 2, {n * (n + 4)}}}, int64[4] whole = {{1, 2, {n}, {n + 4}}}>
      {{ f = Reshape (x, flat)  t = Transpose <perm = [0,2,1]> (f)  s = MatMul (t, f)  a = Softmax (s)
         v = MatMul (f, a)  y = Reshape (v, whole) }}"""


def skip_connection(n: int) -> str:
    """A Resize to a fixed size that meets an open one."""
    return f"""g (float[1,1,{n},{n}] x) => (float[1,2,{n},{n}] y)
      <int64[4] wanted = {{1, 1, {n}, {n}}}>
      {{ p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)  q = MaxPool <kernel_shape = [2,2], strides = [2,2]> (p)
         u = Resize <mode = "nearest"> (q, , , wanted)  y = Concat <axis = 1> (x, u) }}"""


def distances(n: int) -> str:
    """Differences of positions, as relative attention has them, and values that fill a fixed shape."""
    j_i = np.arange(n) - np.arange(n)[:, None]
    return f"""g (float[{n},3] x) => (float[{n},{n}] y)
      <int64[{n},{n}] d = {numbers(j_i)}, int64[2] shape = {{1, {n}}}, int64[2] all = {{{n}, {n}}}, int64 none = {{0}},
       int64 many = {{{n}}}, int64 step = {{1}}>
      {{ t = Transpose (x)  s = MatMul (x, t)  a = Abs (d)  f = Cast <to = 1> (a)  m = Sub (s, f)
         z = ConstantOfShape <value = float[1] {{2}}> (shape)  w = Mul (m, z)  two = Constant <value_float = 0.5> ()
         e = Expand (two, all)  r = Range (none, many, step)  rf = Cast <to = 1> (r)  b = Add (w, rf)  y = Mul (b, e) }}"""


def parts(n: int) -> str:
    """The first token, whole axes, negative bounds, equal parts of a doubled axis."""
    return f"""g (float[1,{n},4] x) => (float[1,1,4] c, float[1,{n},4] w, float[1,{n - 1},4] r, float[1,{n},4] h)
      <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] end = {{{n}}}, int64[1] last = {{-1}}, int64[2] cut = {{{n}, {n}}}>
      {{ c = Slice (x, zero, one, one)  w = Slice (x, zero, end, one)  r = Slice (x, zero, last, one)
         d = Concat <axis = 1> (x, w)  h, i = Split <axis = 1> (d, cut) }}"""


def recurrent(n: int) -> str:
    """A length that is the time of an LSTM."""
    return f"""g (float[1,1,{2 * n}] x) => (float[1,{n},2] y)
      <float[3,1,2] k = {{1,2,-1,0.5,0.25,1}}, float[1,8,3] w = {numbers(np.sin(np.arange(24.0)))},
       float[1,8,2] r = {numbers(np.cos(np.arange(16.0)))}, int64[3] two = {{{n}, 1, 2}}>
      {{ f = Conv <kernel_shape = [2], strides = [2]> (x, k)  t = Transpose <perm = [2,0,1]> (f)
         o = LSTM <hidden_size = 2> (t, w, r)  s = Reshape (o, two)  y = Transpose <perm = [1,0,2]> (s) }}"""


def masked(n: int) -> str:
    """A mask that is read by batch and position."""
    indices = np.stack([np.zeros(n, int), np.arange(n)], -1)
    return f"""g (int64[1,{n}] mask, float[1,{n}] x) => (float[1,{n}] y)
      <int64[1,{n},2] at = {numbers(indices)}, int64[{n}] each = {numbers(np.arange(n))}>
      {{ m = GatherND (mask, at)  f = Cast <to = 1> (m)  g = Gather <axis = 1> (x, each)  y = Mul (f, g) }}"""


def cut_to_the_size(n: int) -> str:
    """A convolution that makes more, cut to what it meets; a pool that rounds up."""
    return f"""g (float[1,1,{n}] x) => (float[1,1,{n}] y, float[1,1,{(n + 1) // 2}] z)
      <float[1,1,4] k = {{1,2,3,4}}, int64[1] zero = {{0}}, int64[1] end = {{{n}}}, int64[1] last = {{2}}>
      {{ c = Conv <kernel_shape = [4], pads = [3, 3]> (x, k)  s = Slice (c, zero, end, last)  y = Mul (s, x)
         z = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (x) }}"""


def padded_and_causal(n: int) -> str:
    """A triangle that meets the size on one axis first."""
    return f"""g (bool[1,1,1,{n}] mask, float[1,1,{n},{n}] x) => (float[1,1,{n},{n}] y)
      <bool[1,1,{n},{n}] t = {numbers(np.tri(n).astype(int))}, float zero = {{0}}>
      {{ a = And (t, mask)  y = Where (a, x, zero) }}"""


def scattered(n: int) -> str:
    """A cache that is written at every position, and at its first."""
    indices = np.stack([np.zeros(n, int), np.arange(n)], -1)
    return f"""g (float[1,{n},2] x, float[1,{n},2] cache) => (float[1,{n},2] y, float[1,{n},2] z)
      <int64[1,{n},2] at = {numbers(indices)}, int64[1,2] first = {{0, 0}}, float[1,2] one = {{5, 6}}>
      {{ y = ScatterND (cache, at, x)  z = ScatterND (x, first, one) }}"""


# the text, what to open, the size in the file, other sizes
OPENED: dict[str, tuple[Text, dict[str, list[str]], int, tuple[int, ...]]] = {
    "attention": (attention, {"n": ["ids.1"]}, 8, (5, 13, 30)),
    "every pair of pixels": (every_pair_of_pixels, {"n": ["x.2"], "m": ["x.3"]}, 6, (4, 9)),
    "a skip connection": (skip_connection, {"n": ["x.2"], "m": ["x.3"]}, 8, (4, 12, 20)),
    "distances": (distances, {"n": ["x.0"]}, 6, (4, 9)),
    "parts": (parts, {"n": ["x.1"]}, 6, (4, 11)),
    "recurrent": (recurrent, {"n": ["x.2"]}, 6, (4, 9)),
    "cut to the size": (cut_to_the_size, {"n": ["x.2"]}, 8, (5, 13)),
    "padded and causal": (padded_and_causal, {"n": ["mask.3", "x.2", "x.3"]}, 6, (4, 9)),
    "scattered": (scattered, {"n": ["x.1", "cache.1"]}, 6, (4, 9)),
    "masked": (masked, {"n": ["mask.1", "x.1"]}, 6, (4, 9)),
}

# a result that is cut at its end, and meets nothing
FOLLOW = {"parts": ["w"]}
# constants of one number for each position, whose readings are accepted
EXTENDED = {
    "attention": {"positions": "ramp", "mask": "triangle"}, "distances": {"d": "ramp"}, "padded and causal": {"t": "triangle"},
    "scattered": {"at": "ramp"}, "masked": EVERY,
}  # fmt: skip


@pytest.mark.parametrize("name", OPENED)
def test_the_same_model_written_for_other_sizes(name: str) -> None:
    text, wanted, size, others = OPENED[name]
    extend = EXTENDED.get(name)
    if extend:
        with pytest.raises(InputError, match="does not decide how it continues; read as"):
            open_dimensions(load_own(parse(text(size))), wanted, FOLLOW.get(name, ()))
    done = open_dimensions(load_own(parse(text(size))), wanted, FOLLOW.get(name, ()), extend=extend)
    opened = to_proto(done.program, weights=True)
    onnx.checker.check_model(opened, full_check=True)
    for n in (size, *others):
        original = parse(text(n))
        feeds = feeds_for(original, seed=0)
        for key, expected in run(original, feeds).items():
            got = np.asarray(run(opened, feeds)[key])
            np.testing.assert_array_equal(got, np.asarray(expected))


def test_limits_are_said() -> None:
    done = open_dimensions(load_own(parse(attention(8))), {"n": ["ids.1"]}, extend=EVERY)
    assert done.most == {"n": 30} and done.steps == {"n": 1}
    assert done.notes == ("n is at most 30: 'table' has 30 rows",)
    assert done.program.main.inputs[0].name == "ids"
    assert to_proto(done.program).graph.input[0].doc_string == "n is at most 30"
    pooled = "g (float[1,4,8,8] x) => (float[1,1,8,8] y) { d = SpaceToDepth <blocksize = 4> (x)  y = DepthToSpace <blocksize = 8> (d) }"
    deep = open_dimensions(load_own(parse(pooled)), {"h": ["x.2"]})
    assert deep.steps == {"h": 4} and [s["h"] for s in other_sizes(deep)] == [12, 4]


REFUSED = {
    "a weight for this size": (
        "g (float[1,6] x) => (float[1,2] y) <float[6,2] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = MatMul (x, w) }",
        "x.1", r"MatMul.*constant 'w' f32\[6,2\] holds one value for each position"),
    "a table of positions": (
        "g (float[1,4,1] x) => (float[1,4,1] y) <float[1,4,1] p = {1, 2, 4, 8}> { y = Add (x, p) }", "x.1", "Add.*constant 'p'"),
    "linspace": ("g (float[1,5] x) => (float[1,5] y) <float[5] p = {0, 0.25, 0.5, 0.75, 1}> { y = Add (x, p) }", "x.1", "constant 'p'"),
    "a count down": ("g (float[1,5] x) => (float[1,5] y) <float[5] p = {4, 3, 2, 1, 0}> { y = Add (x, p) }", "x.1", "constant 'p'"),
    "too short to tell": ("g (float[1,3] x) => (float[1,3] y) <float[3] p = {0, 1, 2}> { y = Add (x, p) }", "x.1", "constant 'p'"),
    "windows": ("g (float[16,2] x) => (float[4,4,2] y) <int64[3] s = {4,4,2}> { y = Reshape (x, s) }", "x.0",
                "splits n, 16 in the file, into 4 x 4, and it is not known which"),
    "a bound near the end": (
        "g (float[1,8] x) => (float[1,7] y) <int64[1] a = {0}, int64[1] b = {7}, int64[1] c = {1}> { y = Slice (x, a, b, c) }",
        "x.1", r"its end 7 of 8 may count from the end \(write -1\)"),
    "an index near the end": ("g (float[1,8] x) => (float[1] y) <int64 i = {7}> { y = Gather <axis = 1> (x, i) }", "x.1", "its index 7 of 8"),
    "an element near the end": (
        "g (float[1,8] x) => (float[1,1] y) <int64[1,1] i = {7}> { y = GatherElements <axis = 1> (x, i) }", "x.1", "its index 7 of 8"),
    "the last row": ("g (float[8,2] x) => (float[8,2] y) <int64[1,1] i = {7}, float[1,2] u = {1, 2}> { y = ScatterND (x, i, u) }", "x.0",
                     "ScatterND.*its index 7 of 8"),
    "a fixed picture": (
        'g (float[1,1,4,4] x) => (float[1,1,9,4] y) <int64[4] s = {1,1,9,4}> { y = Resize <mode = "nearest"> (x, , , s) }',
        "x.2", "Resize.*its target 9 is fixed.*follow="),
    "all elements": ("g (float[1,8] x) => (float[1,8] y, int64[1,8] i) <int64[1] k = {8}> { y, i = TopK (x, k) }", "x.1", "TopK.*its k of 8 may mean all of n, or 8 at any size"),
    "another input": ("g (float[1,8] x, float[1,8] m) => (float[1,8] y) { y = Mul (x, m) }", "x.1",
                      r"axis 1 of input 'm' f32\[1,8\] is fixed.*'...,m.1'"),
    "channels": ("g (float[1,2,8] x) => (float[1,1,8] y) <float[1,2,1] k = {1, 2}> { y = Conv (x, k) }", "x.1", "Conv.*its channels are fixed"),
    "parts of fixed sizes": ("g (float[1,8] x) => (float[1,3] y, float[1,5] z) <int64[2] s = {3, 5}> { y, z = Split <axis = 1> (x, s) }",
                             "x.1", "Split.*into parts of fixed sizes"),
    "an operator without a rule": ("g (float[8] x) => (int64[1,N] y) { y = NonZero (x) }", "x.0", "NonZero.*no rule for open sizes"),
    "two sizes that must be equal": ("g (float[8,8] x) => (float[8,8] y) { t = Transpose (x)  y = Add (x, t) }", "x.0", "Add.*'x'|axis 1 of input 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_certain_is_refused(name: str) -> None:
    text, place, reason = REFUSED[name]
    with pytest.raises(InputError, match=reason):
        open_dimensions(load_own(parse(text)), {"n": [place]})


# another number equals the size in the file: (text for a size, place, meanings at other sizes, follow or not)
TWO_READINGS: dict[str, tuple[Text, str, str, str]] = {
    "another axis": (
        lambda n: f"g (float[1,{n},4] x) => (float[1,4,{n}] y) <int64[3] s = {{1, 4, {n}}}> {{ y = Reshape (x, s) }}",
        "x.1", r"\[1, n, 4\] or \[1, 4, n\]", "",
    ),
    "a number of groups": (
        lambda n: "g (float[1,N,8] x) => (float[4,M] y) <int64[2] s = {4, -1}> { y = Reshape (x, s) }".replace("N", str(n)),
        "x.1", r"\[n, 8\] or \[4, 2\*n\]", "",
    ),
    "part of a product": (
        lambda n: f"g (float[1,{n},8] x) => (float[8,{n}] y) <int64[2] s = {{8, {n}}}> {{ y = Reshape (x, s) }}",
        "x.1", r"\[2\*n, 4\] or \[8, n\]", "",
    ),
    "two axes, far apart": (  # the second target is right with the other reading of the first alone
        lambda n: f"""g (float[1,{n},4] x) => (float[1,{n},4] y) <int64[3] s = {{1, 4, {n}}}, int64[3] t = {{1, {n}, 4}}>
            {{ a = Reshape (x, s)  b = Softmax (a)  y = Reshape (b, t) }}""",
        "x.1", r"Reshape 'a'.*\[1, n, 4\] or \[1, 4, n\]", "",
    ),
    "beside -1": (
        lambda n: f"g (float[1,{n},16] x) => (float[4,{n},M] y) <int64[3] s = {{4, {n}, -1}}> {{ y = Reshape (x, s) }}",
        "x.1", r"\[n, 4, 4\] or \[4, 4, n\]", "",
    ),
    "the first four": (
        lambda n: "g (float[1,N] x) => (float[1,4] y) <int64[1] a = {0}, int64[1] b = {4}, int64[1] c = {1}> { y = Slice (x, a, b, c) }".replace("N", str(n)),
        "x.1", "Slice 'y'.*ends n or ends 4", "",
    ),
    "a fixed picture": (
        lambda n: 'g (float[1,1,N,2] x) => (float[1,1,4,2] y) <int64[4] s = {1,1,4,2}> { y = Resize <mode = "nearest"> (x, , , s) }'.replace("N", str(n)),
        "x.2", "Resize 'y'.*a target of 1, 1, n, 2 or a target of 1, 1, 4, 2", "",
    ),
    "as many as positions": (
        lambda n: f"""g (float[1,{n}] x) => (float[1,{n}] y) <int64[1] s = {{{n}}}> {{ c = ConstantOfShape <value = float[1] {{2}}> (s)
            k = ReduceSum <keepdims = 0> (c)  y = Div (x, k) }}""",
        "x.1", r"ConstantOfShape 'c'.*\[4\] or \[n\]", "c",
    ),
    "copies": (
        lambda n: f"g (float[1,{n}] x) => (float[{n},{n}] y) <int64[2] s = {{{n}, {n}}}> {{ y = Expand (x, s) }}",
        "x.1", r"Expand 'y'.*\[4, n\] or \[n, n\]", "y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO_READINGS)
def test_numbers_with_two_readings(name: str) -> None:
    """Refused, unless another export decides, or the user says which."""
    text, place, reason, follows = TWO_READINGS[name]
    with pytest.raises(InputError, match=f"{reason}, and the model works with both"):
        open_dimensions(load_own(parse(text(4))), {"n": [place]})
    open_dimensions(load_own(parse(text(4))), {"n": [place]}, compared={"n": 7})
    done = open_dimensions(load_own(parse(text(4))), {"n": [place]}, ["*"])
    if follows:
        named = open_dimensions(load_own(parse(text(4))), {"n": [place]}, [follows])
        feeds = feeds_for(parse(text(7)), seed=0)
        expected = np.asarray(run(parse(text(7)), feeds)["y"])
        for found in (done, named):
            assert np.array_equal(np.asarray(run(to_proto(found.program), feeds)["y"]), expected)


def test_indices_of_all_positions_are_a_table() -> None:
    """`follow` of all nodes does not take it; the user names the constant, or the node too."""
    text = "g (float[1,4] x) => (float[1,4] y) <int64[4] i = {0, 1, 2, 3}> { y = Gather <axis = 1> (x, i) }"
    both = "n indices or 4 indices, and the model works with both: pass follow=.'y'. for n indices, compare"
    for follow, extend, reason in (
        ([], {}, "extend={'i': 'ramp'}"), (["*"], {}, "extend={'i': 'ramp'}"), (["*"], EVERY, both), (["y"], {}, "extend="),
    ):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            open_dimensions(load_own(parse(text)), {"n": ["x.1"]}, follow, extend=extend)
    for follow, extend in (([], {"i": "ramp"}), (["y"], EVERY)):
        done = open_dimensions(load_own(parse(text)), {"n": ["x.1"]}, follow, extend=extend)
        assert str(done.program.main.outputs[0].type) == "f32[1,n]"


@pytest.mark.parametrize(
    "text",
    [
        # the product with a weight, and with positions, goes with one reading
        "g (float[1,4,4] x) => (float[1,4,2] y) <int64[3] s = {1,4,-1}, float[4,2] w = {1,9,2,8,3,7,5,6}> { a = Reshape (x, s)  y = MatMul (a, w) }",
        "g (float[1,4,16] x) => (float[1,4,2] y) <int64[3] s = {1,4,-1}, float[16,2] w = {1,9,2,8,3,7,5,6,4,4,4,4,0,1,0,1,9,9,8,7,6,5,4,3,2,1,1,1,1,1,2,3}> { a = Reshape (x, s)  y = MatMul (a, w) }",
        "g (float[1,4] x) => (float[1,4] y) <int64[1] a = {0}, int64[1] b = {4}, int64[1] c = {1}> { s = Slice (x, a, b, c)  y = Add (s, x) }",
    ],
)
def test_the_model_decides(text: str) -> None:
    done = open_dimensions(load_own(parse(text)), {"n": ["x.1"]})
    assert "n" in str(done.program.main.outputs[0].type)


def test_a_target_that_follows_because_the_user_says_so() -> None:
    def text(n: int) -> str:
        return f"""g (float[1,1,{n},4] x) => (float[1,1,{n},4] y) <int64[4] s = {{1,1,{n},4}}> {{
          p = AveragePool <kernel_shape = [2,1], strides = [2,1]> (x)  y = Resize <mode = "linear"> (p, , , s) }}"""

    model = parse(text(8))
    with pytest.raises(InputError, match="its target 8 is fixed"):
        open_dimensions(load_own(model), {"n": ["x.2"]})
    done = open_dimensions(load_own(model), {"n": ["x.2"]}, ["y"])
    feeds = feeds_for(parse(text(12)), seed=0)
    expected = np.asarray(run(parse(text(12)), feeds)["y"])
    assert np.array_equal(np.asarray(run(to_proto(done.program), feeds)["y"]), expected)


@pytest.mark.parametrize(
    ("wanted", "follow", "reason"),
    [
        ({"n": ["q.1"]}, [], "'q.1' is not an axis of an input"),
        ({"n": ["w.0"]}, [], "axis 0 of f32.N. has no fixed size"),
        ({"n": ["x.5"]}, [], "axis 5 of .* has no fixed size"),
        ({"N": ["x.1"]}, [], "'N' is not a name for a new size"),
        ({"a+b": ["x.1"]}, [], "is not a name for a new size"),
        ({"n": ["x.1", "x.2"]}, [], "several sizes: 4 in x.1, 5 in x.2"),
        ({"n": ["x.1"]}, ["q"], "no such node"),
    ],
)
def test_bad_choices(wanted: dict[str, list[str]], follow: list[str], reason: str) -> None:
    model = parse("g (float[1,4,5] x, float[N] w) => (float[1,4,5] y) { y = Neg (x) }")
    with pytest.raises(InputError, match=reason):
        open_dimensions(load_own(model), wanted, follow)


def test_a_window_that_covers_all_is_said() -> None:
    text = (
        "g (float[1,1,4,4] x) => (float[1,1,1,1] y) { y = AveragePool <kernel_shape = [4,4]> (x) }"
    )
    done: OpenedSizes = open_dimensions(load_own(parse(text)), {"n": ["x.2"]})
    assert done.notes[0] == "n is at least 4: AveragePool 'y'" and done.least == {"n": 4}
    assert "its window covers the whole axis" in done.notes[1]


def test_a_window_needs_room_behind_strides() -> None:
    """The second window needs two results of the first."""
    text = """g (float[1,1,40] x) => (float[1,1,N] y) <float[1,1,4] k = {1,2,3,4}, float[1,1,2] l = {1,2}> {
      a = Conv <strides = [3], pads = [1, 0]> (x, k)  y = Conv <dilations = [2]> (a, l) }"""
    done = open_dimensions(load_own(parse(text)), {"n": ["x.2"]})
    assert done.least == {"n": 9} and done.notes == ("n is at least 9: Conv 'y'",)
    assert [s["n"] for s in other_sizes(done)] == [55, 20]
    assert np.shape(run(to_proto(done.program), {"x": np.ones((1, 1, 9), np.float32)})["y"]) == (
        1,
        1,
        1,
    )
    indices = """g (float[1,9] x) => (float[1] y, float[1,N] z, float[1,6] v, int64[1,6] i) <int64 i3 = {3}, int64[4] p = {0, 7, 0, 1}, int64[1] k = {6}> {
      y = Gather <axis = 1> (x, i3)  z = Pad <mode = "reflect"> (x, p)  v, i = TopK (x, k) }"""
    others = {"k = {6}": 8, "p = {0, 7, 0, 1}": 6, "": 8}
    for part, least in others.items():
        plain = indices.replace(part, part.replace("7", "2").replace("6", "2")) if part else indices
        assert open_dimensions(load_own(parse(plain)), {"n": ["x.1"]}).least == {"n": least}
    small = open_dimensions(load_own(parse(text.replace("40", "12"))), {"n": ["x.2"]})
    assert [s["n"] for s in other_sizes(small)] == [16, 9]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "bert_script", "gpt2", "lstm_script"])
def test_dynamic_models_that_were_fixed(name: str) -> None:
    """A model with a dynamic length, fixed, folded and opened again computes what it computes."""
    model = onnx.load(MODELS_DIR / f"{name}.onnx")
    symbols = {s: 16 for s, role in roles(model.graph).items() if role != "batch"}
    sizes = {**dict.fromkeys(roles(model.graph), 1), **symbols}
    places = {
        s: [f"{v.name}.{i}" for v in model.graph.input for i, d in enumerate(v.type.tensor_type.shape.dim) if d.dim_param == s]
        for s in symbols
    }  # fmt: skip
    program = load_own(fixed(model, sizes))
    Pipeline.of(passes="fold-constant{floats=false},remove-unused").run(program)
    done = open_dimensions(program, places, extend=EVERY)
    opened = to_proto(done.program, weights=True)
    for other in (symbols, *other_sizes(done)):
        feeds = feeds_for(model, seed=0, dims={**sizes, **other})
        expected = open_session(model, optimize=False).run(feeds)
        found = open_session(opened, optimize=False).run(feeds)
        for key, value in expected.items():
            np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(value))


def test_inputs_of_unknown_rank_and_other_kinds() -> None:
    model = parse(
        "g (float[1,5] x, seq(float[2]) s, float[] k) => (float[1,5] y) { y = Mul (x, k) }"
    )
    model.graph.input[2].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match=r"Mul 'y'.*the rank of 'k' is not known"):
        open_dimensions(load_own(model), {"n": ["x.1"]})


@pytest.mark.parametrize(
    ("inputs", "node", "wanted"),
    [
        ("float[2,3,3] x", 'Einsum <equation = "bii->bi"> (x)', {((0, 1), (0, 2))}),
        (
            "float[2,5,3] x, float[3] w",
            'Einsum <equation = "...i,i->..."> (x, w)',
            {((0, 2), (1, 0))},
        ),
        (
            "float[2,2,5,4] x, float[2,2,6,4] k, float[6] m",
            "Attention (x, k, k, m)",
            {((0, 0), (1, 0), (2, 0)), ((1, 2), (2, 2)), ((1, 2), (2, 2), (3, 0))},
        ),
        ("float[3,4] x, int64 axis", "CumProd (x, axis)", set()),
    ],
)
def test_axes_that_must_agree(
    inputs: str, node: str, wanted: set[tuple[tuple[int, int], ...]]
) -> None:
    (b,) = load_own(parse(f"g ({inputs}) => (y) {{ y = {node} }}", opset=26)).main.bindings
    assert {m.places for m in meetings(b) or ()} == wanted
