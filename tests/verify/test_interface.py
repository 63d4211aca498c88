"""What no rewrite may change about a model's inputs and outputs."""

from __future__ import annotations

import pytest

from onnxgrad.verify.interface import interface_differences
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


@pytest.mark.parametrize("which", [0, 1])
def test_an_output_may_lack_a_type_in_either(which: int) -> None:
    pair = [parse(BASE), parse(BASE)]
    pair[which].graph.output[0].ClearField("type")
    assert interface_differences(*pair) == []
