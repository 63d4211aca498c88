"""Operators of the user's own: computed by a numpy function in this process, for the reference in its child."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import kernel, op, vjp
from onnxgrad.errors import InputError
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.reference.user_operators import own_operators
from tests.helpers import parse

HEAD = '<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>'
CUBE = f"""{HEAD} g (float[N,4] x, float[4] b) => (float[N,4] y) {{
  i = Identity (x)  c = my.domain.Cube (i)  j = Identity (c)  y = Add (j, b) }}"""


def registered() -> None:
    @kernel("my.domain::Cube")
    def cube(x: Any) -> Any:
        return x**3

    vjp("my.domain::Cube", lambda g, y, x: g * 3.0 * x * x)


def test_a_model_with_an_operator_of_ones_own_is_proved() -> None:
    registered()
    done = onnxgrad.optimize(parse(CUBE), report=True)
    assert {r.rule for r in done.rewrites} == {"identity"}
    assert done.proof.verdict == "equal" and done.proof.checks["float64"].ran
    gap = (
        "onnxruntime check did not run (it lacks my.domain::Cube, which a kernel of yours computes"
    )
    assert gap in done.proof.summary
    wrong = parse(CUBE.replace("Add (j, b)", "Sub (j, b)"))
    assert onnxgrad.verify(parse(CUBE), wrong).verdict == "different"


def test_its_gradient_is_checked() -> None:
    registered()
    report = onnxgrad.check_gradient(parse(CUBE))
    assert report.ok and report.provider == "in float64, as onnxruntime lacks my.domain::Cube"
    vjp("my.domain::Cube", lambda g, y, x: g * 2.0 * x * x, replace=True)
    assert not onnxgrad.check_gradient(parse(CUBE)).ok


def test_without_a_kernel_the_rest_is_proved() -> None:
    report = onnxgrad.verify(parse(CUBE), parse(CUBE))
    assert report.verdict == "equal" and report.around == ("my.domain::Cube",)
    registered()
    report = onnxgrad.verify(parse(CUBE), parse(CUBE), checks=["onnxruntime"])
    assert report.verdict == "equal" and report.around == ("my.domain::Cube",)


def test_what_is_wrong_for_another_reason_is_still_refused() -> None:
    """Not every model with an operator of one's own may skip onnxruntime."""
    registered()
    broken = parse(CUBE.replace("Add (j, b)", "Add (j, q)"))
    with pytest.raises(InputError, match="does not load in onnxruntime"):
        onnxgrad.verify(broken, broken)


def test_attributes_outputs_and_what_is_left_out() -> None:
    @kernel("my.domain::Parts")
    def parts(x: Any, bias: Any = None, *, scale: float = 1.0, name: str = "", ks: Any = ()) -> Any:
        assert bias is None and name == "n" and list(ks) == [1, 2]
        return scale * x, np.sign(x)

    model = parse(
        f"""{HEAD} g (float[3] x) => (float[3] y, float[3] z) {{
        y, z = my.domain.Parts <name = "n", ks = [1, 2], scale = 3.0> (x) }}"""
    )
    feeds = {"x": np.array([-1, 0, 2], np.float32)}
    for found in (Float64(model).run(feeds), reference(model, feeds)):
        assert found["y"].tolist() == [-3, 0, 6] and found["z"].tolist() == [-1, 0, 1]
        assert found["y"].dtype == np.float64


def test_large_arrays_travel_whole() -> None:
    kernel("my.domain::Twice")(lambda x: 2 * x)
    model = parse(
        f"""{HEAD} g (float[N] x) => (float[N] y) {{
        a = my.domain.Twice (x)  b = my.domain.Twice (a)  y = my.domain.Twice (b) }}"""
    )
    x = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    assert (Float64(model).run({"x": x})["y"] == 8 * x.astype(np.float64)).all()


def test_inside_a_loop_a_branch_and_a_function() -> None:
    kernel("my.domain::Twice")(lambda x: 2 * x)
    model = parse(
        f"""{HEAD[:-1]}, functions>""".replace(", functions", "")
        + """ g (float[2] x, bool c) => (float[2] y) {
        h = If (c) <then_branch = t () => (float[2] p) { p = my.domain.Twice (x) },
                    else_branch = e () => (float[2] q) { q = Identity (x) }>
        y = my.domain.Four (h) }
        <domain: "my.domain", opset_import: ["": 17, "my.domain": 1]>
        Four (v) => (w) { k = my.domain.Twice (v)  w = my.domain.Twice (k) }"""
    )
    assert own_operators(model) == ["my.domain::Twice"]
    feeds = {"x": np.ones(2, np.float32), "c": np.array(True)}
    assert Float64(model).run(feeds)["y"].tolist() == [8, 8]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: 1 / 0, "Cube -> 'c': ZeroDivisionError: division by zero"),
        (lambda x: (), "TypeError: the kernel returns 0 of 1 outputs"),
        (lambda x: object(), "TypeError: the kernel returns something that is not an array"),
        (lambda: 1, "TypeError: .* takes 0 positional arguments"),
    ],
)
def test_a_kernel_that_fails_says_so_and_the_child_lives_on(function: Any, said: str) -> None:
    kernel("my.domain::Cube")(function)
    x = {"x": np.ones((1, 4), np.float32), "b": np.zeros(4, np.float32)}
    with pytest.raises(onnxgrad.Unsupported, match=said):
        Float64(parse(CUBE)).run(x)
    report = onnxgrad.verify(parse(CUBE), parse(CUBE))
    assert report.verdict == "not proved"
    registered()
    assert Float64(parse(CUBE)).run(x)["y"].tolist() == [[1, 1, 1, 1]]


def test_a_kernel_that_is_gone_is_not_remembered() -> None:
    x = {"x": np.ones((1, 4), np.float32), "b": np.zeros(4, np.float32)}
    with onnxgrad.temporary_rules():
        registered()
        Float64(parse(CUBE)).run(x)
    with pytest.raises(onnxgrad.Unsupported, match=r"my\.domain::Cube is not known"):
        Float64(parse(CUBE)).run(x)


def test_onnx_says_what_its_own_operators_compute() -> None:
    with pytest.raises(InputError, match="ONNX says what Relu computes"):
        kernel("Relu")
    with pytest.raises(InputError, match="is not an operator name"):
        kernel("::Relu")


def test_a_rule_of_an_operator_that_there_is_not_is_refused() -> None:
    for name, hint in (
        ("Cube", "the default domain has no operator 'Cube'; one of your own has a domain, as in my"),
        ("Relo", "the default domain has no operator 'Relo'; did you mean 'Relu'"),
        ("ai.onnx.ml::Scalar", "the domain ai.onnx.ml has no operator 'Scalar'; did you mean 'Scaler'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=hint):
            vjp(name, lambda g, y, x: g)
    with pytest.raises(InputError, match="did you mean 'Tanh'"):
        onnxgrad.zero("Tanhh")
    vjp("my.domain::Tanhh", lambda g, y, x: op.Tanh(g))


def test_a_model_without_any_is_not_walked() -> None:
    assert own_operators(onnx.ModelProto()) == []
