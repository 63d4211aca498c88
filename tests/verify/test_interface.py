"""What no rewrite may change about a model's inputs and outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify import verify
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.interface import correspondence, interface_differences
from tests.helpers import parse

BASE = "g (float[N,3] x, int64[2] i) => (float[N,3] y, int64[2] j) { y = Neg(x) j = Identity(i) }"


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        "g (float[M,3] x, int64[2] i) => (float[A,B] y, int64[2] j) { y = Neg(x) j = Identity(i) }",
        "g (float[M,K] x, int64[2] i) => (float[7,3] y, int64[2] j) { y = Neg(x) j = Identity(i) }",
    ],
)
def test_symbols_may_be_renamed_widened_and_outputs_refined(text: str) -> None:
    assert interface_differences(parse(BASE), parse(text)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("g (float[N,3] x) => (float[N,3] y, float[N,3] j) { y = Neg(x) j = Neg(y) }", "'i' is missing"),
        ("g (int64[2] i, float[N,3] x) => (float[N,3] y, int64[2] j) { y = Neg(x) j = Identity(i) }", "order"),
        ("g (float[N,3] x, int64[2] i) => (float[N,3] y) { y = Neg(x) }", "'j' is missing"),
        ("g (float[N,3] x, int64[2] i) => (float[N,3] z, int64[2] j) { z = Neg(x) j = Identity(i) }", "'z' is new"),
        ("g (double[N,3] x, int64[2] i) => (double[N,3] y, int64[2] j) { y = Neg(x) j = Identity(i) }", "was float"),
        ("g (float[4,3] x, int64[2] i) => (float[4,3] y, int64[2] j) { y = Neg(x) j = Identity(i) }", "takes only"),
        ("g (seq(float[N]) x, int64[2] i) => (seq(float[N]) y, int64[2] j) { y = Identity(x) j = Identity(i) }",
         "was a tensor_type"),
    ],
)  # fmt: skip
def test_changes_are_named(text: str, words: str) -> None:
    found = interface_differences(parse(BASE), parse(text))
    assert found and any(words in str(difference) for difference in found)
    assert not any(difference.ok for difference in found)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("float[N,3] {}", "double[N,3] {}", "was float, is double"),
        ("int64[2] {}", "int32[2] {}", "was int64, is int32"),
        ("float[N,3] {}", "seq(float[N,3]) {}", "was a tensor_type, is a sequence_type"),
    ],
)
def test_a_change_is_from_the_first_to_the_second(
    old: str, new: str, words: str, both: bool
) -> None:
    """Of an output and of an input."""
    names = {"float[N,3] {}": ("y", "x"), "int64[2] {}": ("j", "i")}[old]
    changed = BASE
    for name in names[: 1 + both]:
        changed = changed.replace(old.format(name), new.format(name))
    found = [str(d) for d in interface_differences(parse(BASE), parse(changed))]
    places = [f"output {names[0]!r}", f"input {names[1]!r}"][: 1 + both]
    assert all(any(p in f and words in f for f in found) for p in places), found


def test_a_default_value_must_stay() -> None:
    with_default = parse(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    )
    without = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    if (
        len(with_default.graph.input) == 1
    ):  # the text format does not list an initializer among the inputs
        with_default.graph.input.append(without.graph.input[1])
    assert "default" in str(interface_differences(with_default, without)[0])
    assert interface_differences(without, without) == []


def test_below_ir_4_weights_are_listed_and_no_inputs() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    old, new, fed = parse(text, ir_version=3), parse(text, ir_version=8), parse(text, ir_version=8)
    for model in (old, fed):
        listed = model.graph.input.add()
        listed.CopyFrom(model.graph.input[0])
        listed.name = "w"
    assert interface_differences(old, new) == [] == interface_differences(old, old)
    assert "'w' is new" in str(interface_differences(old, fed)[0])
    assert "'w' is missing" in str(interface_differences(fed, new)[0])


@pytest.mark.parametrize("atol", [None, 1e-3])
@pytest.mark.parametrize("which", [0, 1])
def test_an_output_may_lack_a_type_in_either(which: int, atol: float | None) -> None:
    pair = [parse(BASE), parse(BASE)]
    pair[which].graph.output[0].ClearField("type")
    assert interface_differences(*pair) == []
    assert (
        interface_differences(pair[0], correspondence(*pair, {}, Bounds.of(atol, None, None))[1])
        == []
    )


SINGLE = """g (float[N,3] x, int64[N] ids) => (float[N,4] logits, int64[N] best)
  <float[3,4] w = {1,-2,3,0.1, 0.2,0.3,-0.4,1, 2,1,-1,0.5}> {
  h = MatMul (x, w)  logits = Tanh (h)  k = ArgMax <axis = -1, keepdims = 0> (logits)  best = Add (k, ids) }"""
HALF = (
    SINGLE.replace("float[N", "float16[N")
    .replace("float[3,4] w =", "float[3,4] wide =")
    .replace("h = MatMul", "w = Cast <to = 10> (wide)  h = MatMul")
)
RENAMED = (
    SINGLE.replace("(float[N,4] logits, int64[N] best)", "(int64[N] best, float[N,4] linear)")
    .replace("logits", "linear")
    .replace("x", "pixels")
    .replace("ArgMapixels", "ArgMax")
    .replace("apixelsis", "axis")
)
NAMES = {"logits": "linear", "x": "pixels"}


def test_a_renamed_model_is_equal_when_it_is_said_what_is_what() -> None:
    a, b = parse(SINGLE), parse(RENAMED)
    assert "missing" in str(verify(a, b))
    report = verify(a, b, map=NAMES)
    assert report.verdict == "equal" and report.compared.keys() == {"logits", "best"}
    assert all(check.ran for check in report.checks.values())
    wrong = parse(RENAMED.replace("Tanh", "Sin"))
    assert verify(a, wrong, map=NAMES).verdict == "different"


def test_names_may_change_places() -> None:
    a = parse("g (float[2] x, float[2] z) => (float[2] y) { y = Sub (x, z) }")
    b = parse("g (float[2] z, float[2] x) => (float[2] y) { y = Sub (z, x) }")
    assert not verify(a, b) and verify(a, b, map={"x": "z", "z": "x"})


def test_what_has_a_default_keeps_it_under_another_name() -> None:
    text = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {2, 3}> { y = Mul (x, w) }"
    a, b = parse(text), parse(text.replace("w", "weight"))
    assert verify(a, b, map={"w": "weight"}).ok


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"logit": "linear"}, "the first model has no input or output 'logit'; did you mean 'logits'"),
        ({"logits": "liner"}, "the second model has no output 'liner'; did you mean 'linear'"),
        ({"x": "linear"}, "the second model has no input 'linear'; there are pixels, ids"),
        ({"x": "ids", "ids": "ids"}, "two inputs of the first model are one of the second"),
    ],
)  # fmt: skip
def test_a_name_that_is_not_there_is_refused(names: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        verify(parse(SINGLE), parse(RENAMED), map=names)


def test_half_is_near_enough_by_a_bound_and_by_no_other_word() -> None:
    a, b = parse(SINGLE), parse(HALF)
    plain = verify(a, b)
    assert plain.verdict == "different" and "was float, is float16" in str(plain)
    near = verify(a, b, rtol=1e-2, atol=2e-3)
    assert near.verdict == "within bounds" and all(check.ran for check in near.checks.values())
    assert near.compared["logits"] > 0 and near.compared["best"] > 0
    assert "within bounds (atol=0.002 rtol=0.01) on cpu" in str(near)
    assert verify(b, a, rtol=1e-2, atol=2e-3).ok  # and the other way round
    exact = verify(a, b, rtol=1e-6)
    assert exact.verdict == "different" and "wanted" in exact.summary
    assert verify(a, b, metric=["cosine=0.99999", "logits:top1=0.99"]).ok
    # what was not meant still has to be equal
    other = parse(HALF.replace("best = Add", "best = Sub"))
    assert verify(a, other, rtol=1e-2, atol=2e-3, inputs=_ids()).verdict == "different"


def test_sequences_of_another_width_are_fed_and_compared() -> None:
    text = "g (seq(float[N]) x, int64 i) => (seq(float[N]) y, float[N] z) { y = Identity(x) z = SequenceAt(x, i) }"
    inputs = {"x": [np.float32([0.1, 2]), np.float32([3.3])], "i": np.int64(1)}
    found = verify(parse(text), parse(text.replace("float", "float16")), atol=1e-2, inputs=inputs)
    assert found.verdict == "within bounds" and found.compared["y"] == 3


def _ids() -> dict[str, np.ndarray]:
    return {"x": np.ones((2, 3), np.float32), "ids": np.array([1, 2])}


def test_int8_against_float() -> None:
    """Weights as int8 with one scale: near by the cosine, and not by 1e-3 of each element."""
    quantised = parse(
        """g (float[N,3] x, int64[N] ids) => (float[N,4] logits, int64[N] best)
        <int8[3,4] q = {42,-85,127,4, 8,13,-17,42, 85,42,-42,21}, float s = {0.0236}> {
        w = DequantizeLinear (q, s)  h = MatMul (x, w)  logits = Tanh (h)
        k = ArgMax <axis = -1, keepdims = 0> (logits)  best = Add (k, ids) }"""
    )
    a = parse(SINGLE)
    assert verify(a, quantised).verdict == "different"
    near = verify(a, quantised, metric=["logits:cosine=0.999", "logits:psnr=35"], inputs=_ids())
    assert near.verdict == "within bounds", near
    assert not verify(a, quantised, rtol=1e-3, inputs=_ids())
    # what nobody is held to is not told
    assert not any(
        "float64 check allows" in n for n in verify(a, quantised, rtol=1.0, inputs=_ids()).notes
    )
    assert any("float64 check allows" in n for n in verify(a, quantised, inputs=_ids()).notes)


def test_a_bound_that_compared_nothing_is_no_pass() -> None:
    zero = parse("g (float[N,3] x) => (float[N,3] y) { y = Sub (x, x) }")
    report = verify(zero, zero, metric="cosine=0.9")
    assert report.verdict == "not proved" and "nothing finite to compare in y" in str(report)
    assert verify(zero, zero, metric="cosine=0.9", allow_empty=["y"]).ok
    with pytest.raises(InputError, match="'z', which is not an output"):
        verify(zero, zero, atol={"z": 1.0})


def test_overflow_in_half_is_a_difference() -> None:
    a = parse(
        "g (float[2] x) => (float[2] y) { c = Constant <value_float = 70000.0> ()  y = Add (x, c) }"
    )
    b = onnx.ModelProto()
    b.CopyFrom(a)
    for value in (*b.graph.input, *b.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    b.graph.node[0].CopyFrom(
        onnx.helper.make_node(
            "Constant", [], ["c"],
            value=onnx.numpy_helper.from_array(np.array(np.inf, np.float16)),
        )
    )  # fmt: skip
    assert "infinity" in str(verify(a, b, rtol=0.5))


def test_the_interface_in_the_first_ones_words() -> None:
    a, b = parse(SINGLE), parse(RENAMED)
    asked, seen = correspondence(a, b, NAMES, Bounds())
    assert [v.name for v in seen.graph.output] == ["logits", "best"]
    assert asked.names.feeds({"x": None, "ids": None}).keys() == {"pixels", "ids"}
    assert asked.names.results({"linear": None, "best": None}).keys() == {"logits", "best"}
    assert [v.name for v in b.graph.output] == ["best", "linear"]


def test_a_model_of_fixed_sizes_is_compared_at_these_sizes() -> None:
    text = "g (float[{}, 2] x) => (float[{}, 2] y) {{ y = Neg (x) }}"
    dynamic, fixed = (parse(text.format(size, size)) for size in ("N", "3"))
    assert verify(dynamic, fixed, dims={"N": 3}).verdict == "equal"
    for dims in (None, {"N": 4}):
        assert "takes only [3, 2]" in str(verify(dynamic, fixed, dims=dims))
    # a rewrite must keep open sizes open, even if its proof has one size only
    assert not verify(dynamic, fixed, dims={"N": 3}, weights="same").ok
