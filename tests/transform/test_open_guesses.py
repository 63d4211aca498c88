"""Constants that one size does not determine: refused, or continued as the user says; the same network written for other sizes
is right with the reading that it has, and the message shows the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array
from onnxgrad.transform.open_sizes import OpenedSizes, open_dimensions
from onnxgrad.verify import feeds_for, run
from tests.helpers import parse

EVERY = {"*": ""}
N = 7  # of positions in the file


def distance(n: int) -> Array:
    """j - i."""
    return np.arange(n) - np.arange(n)[:, None]


def values(array: object) -> str:
    return "{" + ", ".join(map(str, np.asarray(array).ravel().tolist())) + "}"


def added(table: Callable[[int], Array]) -> Callable[[int], str]:
    """A table of floats that is added to scores of every pair, or to every position."""

    def text(n: int) -> str:
        made = table(n).astype(np.float32)
        shape = f"1,{n},{n}" if made.shape == (n, n) else f"1,{n},2"
        size = ",".join(map(str, made.shape))
        return f"g (float[{shape}] x) => (float[{shape}] y) <float[{size}] t = {values(made)}> {{ y = Add (x, t) }}"

    return text


def mask(seen: Callable[[int], Array]) -> Callable[[int], str]:
    return added(lambda n: np.where(seen(n), 0.0, -1e9))


ROWS = np.array([1.0, 0.1, 0.01], np.float32)
SLOPES = np.array([[0.1], [0.07]], np.float32)
# text, reading that the file seems to have, numbers beyond it, whether that is how the network goes on
GUESSED: dict[str, tuple[Callable[[int], str], str, str, bool]] = {
    "a causal mask": (mask(lambda n: np.tri(n, dtype=bool)), "triangle", r"\[0, 0, 0, ..., -1e\+09\]", True),
    "a sliding window of 8": (mask(lambda n: np.tri(n, dtype=bool) & (distance(n) > -8)), "triangle", r"\[0, 0, 0, ..., -1e\+09\]", False),
    "blocks of 8": (mask(lambda n: (np.arange(n) // 8)[:, None] == np.arange(n) // 8), "same", "0", False),
    "near ones": (mask(lambda n: np.abs(distance(n)) <= 8), "same", "0", False),
    "positions": (added(lambda n: np.arange(n)[:, None]), "ramp", "7, 8, 9, ...", True),
    "clamped positions": (added(lambda n: np.minimum(np.arange(n), 10)[:, None]), "ramp", "7, 8, 9, ...", False),
    "distances": (added(distance), "ramp", "7, 8, 9, ...", True),
    "clipped distances": (added(lambda n: np.clip(distance(n), -8, 8)), "ramp", "7, 8, 9, ...", False),
    "segments": (added(lambda n: (np.arange(n) >= 16)[:, None]), "same", "0", False),
    "even and odd": (added(lambda n: (np.arange(n) % 2)[:, None]), "repeat", "1, 0, 1, ...", True),
    "angles": (
        lambda n: f"""g (float[1,{n},3] x) => (float[1,{n},3] y) <float[{n},3] t = {values(np.arange(n, dtype=np.float32)[:, None] * ROWS)}> {{
          c = Cos (t)  y = Mul (x, c) }}""",
        "ramp", r"\[7, 0.7, 0.07\]", True,
    ),
    "a window of 3": (
        mask(lambda n: np.tri(n, dtype=bool) & (distance(n) > -3)), "band", r"\[-1e\+09, -1e\+09, -1e\+09, ..., -1e\+09\]", True,
    ),
    "2 before and 3 after": (
        mask(lambda n: (distance(n) > -3) & (distance(n) < 4)), "band", r"\[-1e\+09, -1e\+09, -1e\+09, ..., -1e\+09\]", True,
    ),
    "slopes times distances": (
        lambda n: f"""g (float[1,2,{n},{n}] x) => (float[1,2,{n},{n}] y) <float[2,{n},{n}] t = {values(SLOPES[:, :, None] * distance(n).astype(np.float32))}> {{
          y = Add (x, t) }}""",
        "ramp", r"\[0.7, 0.49\]", True,
    ),
    "slopes times the distance to the last": (
        lambda n: f"""g (float[1,2,{n},{n}] x) => (float[1,2,{n},{n}] y) <float[2,1,{n}] t = {values(SLOPES[:, None] * np.arange(1 - n, 1, dtype=np.float32))}> {{
          y = Add (x, t) }}""",
        "ramp", r"\[-0.7, -0.49\]", True,
    ),
    "a sum by the length": (
        lambda n: f"""g (float[1,{n},2] x) => (float[1,2] y) <int64[1] a = {{1}}, float t = {{{n}}}> {{
          s = ReduceSum <keepdims = 0> (x, a)  y = Div (s, t) }}""",
        "scaled", "8, 9, 10, ...", True,
    ),
    "a part of the length": (
        lambda n: f"g (float[1,{n},2] x) => (float[1,{n},2] y) <float t = {values(np.float32(1 / n))}> {{ y = Mul (x, t) }}",
        "scaled", "1/8, 1/9, 1/10, ...", True,
    ),
    "a logarithm of the length": (
        lambda n: f"g (float[1,{n},2] x) => (float[1,{n},2] y) <float t = {values(np.log(np.float32(n)))}> {{ y = Mul (x, t) }}",
        "scaled", "log 8, log 9, log 10, ...", True,
    ),
    "a scale of scores": (
        lambda n: f"g (float[1,{n},2] x) => (float[1,{n},2] y) <float t = {{7}}> {{ d = Div (x, t)  y = Softmax (d) }}", "same", "7", True,
    ),
}  # fmt: skip


def opened(text: str, extend: Mapping[str, str] | None = None) -> OpenedSizes:
    program = load_own(parse(text))
    shape = program.main.inputs[0].shape or ()
    places = [f"x.{axis}" for axis, size in enumerate(shape) if size == N]
    return open_dimensions(program, {"n": places}, extend=extend)


def is_right(done: OpenedSizes, text: Callable[[int], str], n: int) -> bool:
    model = parse(text(n))
    feeds = feeds_for(model, seed=0)
    found, expected = (np.asarray(run(m, feeds)["y"]) for m in (to_proto(done.program), model))
    return np.allclose(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", GUESSED)
def test_one_size_decides_nothing(name: str) -> None:
    text, reading, beyond, right = GUESSED[name]
    flag = f"pass extend={{'t': '{reading}'}}"
    with pytest.raises(
        InputError, match=f"constant 't' .*read as {reading} it is {beyond} beyond.*{flag}"
    ):
        opened(text(N))
    for extend in ({"t": reading}, EVERY):
        done = opened(text(N), extend)
        assert is_right(done, text, N) and is_right(done, text, 4)
        assert is_right(done, text, 24) == right


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (2, 0, "on the diagonal and up to 2 positions before it, but"),
        (0, 1, "on the diagonal and up to 1 position after it, but"),
        (
            2,
            3,
            "on the diagonal and up to 2 positions before it and up to 3 positions after it, but",
        ),
    ],
)
def test_a_window_is_described_by_its_sides(before: int, after: int, words: str) -> None:
    text = mask(lambda n: (distance(n) >= -before) & (distance(n) <= after))
    with pytest.raises(InputError, match=f"constant 't' .* has one value {words}"):
        opened(text(N))


FREQUENCIES = (10000.0 ** (-np.arange(6) / 6)).astype(np.float32)


def rotary(n: int, layout: str, scale: float = 1.0) -> str:
    """Positions as models have them: cosines and sines as two tables, as halves of a row, in turns."""
    angles = np.arange(n, dtype=np.float32)[:, None] * FREQUENCIES
    cos, sin = np.float32(scale) * np.cos(angles), np.float32(scale) * np.sin(angles)
    if layout == "two tables":
        return f"""g (float[1,{n},6] x) => (float[1,{n},6] y) <float[{n},6] t = {values(cos)}, float[{n},6] s = {values(sin)}> {{
          a = Mul (x, t)  b = Mul (x, s)  y = Sub (a, b) }}"""
    joined = [sin, cos] if layout == "halves" else [cos, sin]
    row = np.concatenate(joined, 1) if layout == "halves" else np.stack(joined, 2).reshape(n, 12)
    return f"g (float[1,{n},12] x) => (float[1,{n},12] y) <float[{n},12] t = {values(row)}> {{ y = Add (x, t) }}"


@pytest.mark.parametrize("layout", ["two tables", "halves", "in turns"])
@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_cosines_and_sines_of_positions(layout: str, scale: float) -> None:
    with pytest.raises(InputError, match=r"'t' .* holds cosines and sines of positions.*as waves"):
        opened(rotary(N, layout, scale))
    program = to_proto(opened(rotary(N, layout, scale), EVERY).program)
    for n in (4, N, 8, 300):
        other = parse(rotary(n, layout, scale))
        feeds = feeds_for(other, seed=0)
        found, expected = (np.asarray(run(m, feeds)["y"]) for m in (program, other))
        assert np.abs(found - expected).max() <= (n > N) * (1e-6 + 1e-7 * n), n


def test_a_cosine_alone_says_little_of_a_slow_wave() -> None:
    text = rotary(N, "two tables").replace("b = Mul (x, s)", "b = Mul (x, t)")
    without = text[: text.index(", float[7,6] s")] + "> {" + text[text.index("> {") + 3 :]
    with pytest.raises(InputError, match=r"'t' .*follows no rule"):
        opened(without, EVERY)
    noise = np.random.default_rng(0).standard_normal((N, 6))
    with pytest.raises(InputError, match=r"'t' .*follows no rule"):
        opened(without.replace(values(rotary_cosines()), values(noise)), EVERY)


def rotary_cosines() -> Array:
    return np.cos(np.arange(N, dtype=np.float32)[:, None] * FREQUENCIES)


@pytest.mark.parametrize("window", [3, 8])
def test_a_mask_beside_rotary_positions_may_be_a_window(window: int) -> None:
    """A window that is longer than the file looks as a causal mask, so '*' does not accept it."""

    def text(n: int) -> str:
        seen = np.where(np.tri(n, dtype=bool) & (distance(n) > -window), 0.0, -1e9)
        angles = np.arange(n, dtype=np.float32)[:, None] * FREQUENCIES
        return f"""g (float[1,{n},6] x) => (float[1,{n},6] y)
          <float[{n},6] c = {values(np.cos(angles))}, float[{n},6] s = {values(np.sin(angles))}, float[{n},{n}] m = {values(seen)}> {{
          a = Mul (x, c)  b = Mul (x, s)  k = Transpose <perm = [0, 2, 1]> (b)  p = MatMul (a, k)  q = Add (p, m)  w = Softmax (q)  y = MatMul (w, x) }}"""

    if window < N:
        done = opened(text(N), EVERY)
    else:
        with pytest.raises(
            InputError, match=r"'m' .*a sliding window of more positions than the file"
        ):
            opened(text(N), EVERY)
        done = opened(text(N), {"*": "", "m": "triangle"})
    other = parse(text(40))
    feeds = feeds_for(other, seed=0)
    found, expected = (np.asarray(run(m, feeds)["y"]) for m in (to_proto(done.program), other))
    assert (np.abs(found - expected).max() < 1e-5) == (window < N)


def turning(n: int, rates: Mapping[str, Array], by_distance: bool = False) -> str:
    """Attention of values that are turned by each of the tables of angles; `by_distance`: with scores less |j - i|."""
    tables = [
        f"float[{n},6] {name} = {values(np.arange(n, dtype=np.float32)[:, None] * rate)}"
        for name, rate in rates.items()
    ]
    q = "q = Identity (p)"
    if by_distance:
        tables.append(f"int64[{n},{n}] d = {values(distance(n))}")
        q = "far = Abs (d)  f = Cast <to = 1> (far)  q = Sub (p, f)"
    turned = "".join(f"{k}1 = Cos ({k})  {k}2 = Mul (x, {k}1)  " for k in rates)
    return f"""g (float[1,{n},6] x) => (float[1,{n},6] y) <{", ".join(tables)}> {{
      {turned} a = Sum ({", ".join(f"{k}2" for k in rates)})  k = Transpose <perm = [0, 2, 1]> (a)
      p = MatMul (a, k)  {q}  w = Softmax (q)  y = MatMul (w, x) }}"""


def test_two_rates_of_rotary_positions_without_a_mask_may_hide_a_window() -> None:
    """The transformers library leaves out the mask of a window that is longer than the file (ModernBERT), so '*' does not
    accept the second rate. A mask, or distances from which one is made, show the window.
    """
    both = {"t": FREQUENCIES, "u": FREQUENCIES**2}
    hidden = r"'u' .*turn at other rates.*no mask is in the file.*pass extend=\{'u': 'ramp'\}, or compare"
    with pytest.raises(InputError, match=hidden):
        opened(turning(N, both), EVERY)
    with pytest.raises(InputError, match=r"not of 'u', which may belong to a sliding window"):
        opened(turning(N, both))
    done = opened(turning(N, both), {"*": "", "u": "ramp"})
    assert is_right(done, lambda n: turning(n, both), 24)
    same = {"t": FREQUENCIES, "u": FREQUENCIES * np.float32(1.00001)}
    assert is_right(opened(turning(N, same), EVERY), lambda n: turning(n, same), 24)
    shown = opened(turning(N, both, by_distance=True), EVERY)
    assert is_right(shown, lambda n: turning(n, both, by_distance=True), 24)


def test_a_reading_that_is_not_the_likely_one() -> None:
    table = np.array([3, 1, 4, 1, 5, 9, 2])
    text = added(lambda n: np.resize(table, n)[:, None])
    with pytest.raises(InputError, match="follows no rule"):
        opened(text(N), EVERY)
    assert is_right(opened(text(N), {"t": "repeat"}), text, 17)
    by_length = GUESSED["a sum by the length"][0]
    assert not is_right(opened(by_length(N), {"t": "same"}), by_length, 8)
    scores = GUESSED["a scale of scores"][0]
    assert not is_right(opened(scores(N), {"t": "scaled"}), scores, 8)


@pytest.mark.parametrize(
    ("name", "extend", "reason"),
    [
        ("positions", {"t": "same"}, "constant 't' .* does not fit the reading 'same'"),
        ("positions", {"t": "triangle"}, "does not fit the reading 'triangle'"),
        ("a sum by the length", {"t": "ramp"}, "constant 't' .*it cannot be read as 'ramp'"),
        ("positions", {"t": "ramp", "s": "ramp"}, "no constant 's' meets an opened size"),
    ],
)
def test_readings_that_a_constant_cannot_have(
    name: str, extend: dict[str, str], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        opened(GUESSED[name][0](N), extend)


def test_every_constant_is_shown() -> None:
    text = f"""g (float[1,{N}] x) => (float[1,{N}] y) <float[{N}] p = {values(np.arange(N))}, float[{N}] s = {values(np.ones(N))}> {{
      a = Add (x, p)  y = Mul (a, s) }}"""
    with pytest.raises(InputError, match=r"constant 'p'.*; also 's' as same \(1\)$"):
        opened(text)
    with pytest.raises(
        InputError,
        match=r"constant 's' f32\[7\] is the same at every position, but one size of n does not",
    ):
        opened(text, {"p": "ramp"})


def test_a_table_of_as_many_rows_as_positions() -> None:
    """Its bound would be the size in the file."""
    table = "float[7,2] t = " + values(np.arange(14))
    cut = f"""g (float[1,7,2] x) => (float[1,7,2] y) <{table}, int64[1] a = {{0}}, int64[1] e = {{7}}, int64[1] k = {{0}}> {{
      s = Slice (t, a, e, k)  y = Add (x, s) }}"""
    read = f"g (float[1,7,2] x) => (float[1,7,2] y) <{table}, int64[7] i = {values(np.arange(7))}> {{ s = Gather (t, i)  y = Add (x, s) }}"
    for text in (cut, read):
        with pytest.raises(InputError, match=r"'t' has 7 rows.*, as many as n is"):
            opened(text, EVERY)
        longer = text.replace("float[7,2] t = {", "float[9,2] t = {5, 5, 5, 5, ")
        assert opened(longer, EVERY).most == {"n": 9}


def heatmap(h: int, w: int) -> str:
    """Row and column of the largest number of each map, in integers and in floats."""
    return f"""g (float[1,3,{h},{w}] x) => (int64[1,3] r, int64[1,3] c, float[1,3] f, int64[1,3] k)
      <int64[3] flat = {{1,3,{h * w}}}, int64 width = {{{w}}}, float wide = {{{w}}}, int64 all = {{{h * w}}}> {{
      m = Reshape (x, flat)  i = ArgMax <axis = 2, keepdims = 0> (m)  r = Div (i, width)  c = Mod (i, width)
      z = Cast <to = 1> (i)  f = Div (z, wide)  k = Add (i, all) }}"""


@pytest.mark.parametrize("sizes", [(6, 8), (8, 8)])
def test_rows_and_columns_of_flattened_positions(sizes: tuple[int, int]) -> None:
    places = {"h": ["x.2"], "w": ["x.3"]}
    flat = ["m"] if sizes == (8, 8) else []  # two readings of the Reshape itself
    model = load_own(parse(heatmap(*sizes)))
    with pytest.raises(
        InputError, match=r"'width' .*in Div 'r' is w.*read as scaled it is 9, 10, 11"
    ):
        open_dimensions(model, places, flat)
    done = open_dimensions(load_own(parse(heatmap(*sizes))), places, flat, extend=EVERY)
    other = parse(heatmap(9, 5))
    feeds = feeds_for(other, seed=0)
    found = run(to_proto(done.program), feeds)
    for name, expected in run(other, feeds).items():
        assert np.array_equal(np.asarray(found[name]), np.asarray(expected)), name


def test_a_number_that_is_no_size_of_a_flattened_axis() -> None:
    text = heatmap(6, 8).replace("int64 width = {8}", "int64 width = {3}")
    places = {"h": ["x.2"], "w": ["x.3"]}
    with pytest.raises(
        InputError,
        match=r"'width' .*in Div 'r' is no size of the flattened axis h\*w.*read as same it is 3",
    ):
        open_dimensions(load_own(parse(text)), places)
    assert open_dimensions(load_own(parse(text)), places, extend=EVERY).numbers


def test_numbers_of_sizes_and_of_short_axes_stay() -> None:
    """Arithmetic of a size is a formula of the file; positions of one axis may meet other numbers."""
    text = f"""g (float[1,{N},2] x) => (int64[1,2] y, float[1] z) <int64 t = {{3}}, float s = {{{N}}}> {{
      i = ArgMax <axis = 1, keepdims = 0> (x)  y = Div (i, t)  n = Shape <start = 1, end = 2> (x)  f = Cast <to = 1> (n)  z = Div (f, s) }}"""
    assert opened(text).numbers == ()


def test_tables_that_are_read_by_flattened_positions() -> None:
    """One row for each position follows no rule; a longer table bounds their number."""
    text = """g (float[1,6,8] x) => (float[1,2] y) <int64[2] flat = {1,48}, float[48,2] boxes = %s> {
      m = Reshape (x, flat)  i = ArgMax <axis = 1, keepdims = 0> (m)  y = Gather (boxes, i) }"""
    places = {"h": ["x.1"], "w": ["x.2"]}
    numbers = np.arange(200) ** 2
    with pytest.raises(
        InputError,
        match=r"constant 'boxes' f32\[48,2\] holds one value for each position .48 on axis 0 for h\*w",
    ):
        open_dimensions(load_own(parse(text % values(numbers[:96]))), places, extend=EVERY)
    done = open_dimensions(
        load_own(parse(text.replace("float[48,2]", "float[100,2]") % values(numbers))), places
    )
    assert done.notes == ("h*w is at most 100: 'boxes' has 100 rows",)
    counted = parse(text.replace("float[48,2]", "float[48,1]") % values(np.arange(48)))
    with pytest.raises(InputError, match=r"'boxes' .*read as ramp it is 48, 49, 50"):
        open_dimensions(load_own(counted), places)
    opened_ = to_proto(open_dimensions(load_own(counted), places, extend=EVERY).program)
    x = np.zeros((1, 9, 9), np.float32)
    x[0, 8, 7] = 1
    assert np.asarray(run(opened_, {"x": x})["y"]).tolist() == [[79]]
