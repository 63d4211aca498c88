"""No job visits an operand once per path to it: a value that is read twice at each of 40 nodes would be visited 2^40
times.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import onnx
import pytest

import onnxgrad
from onnxgrad.grad import safe_forms
from onnxgrad.grad.control_flow import branches
from onnxgrad.ir.load import load
from onnxgrad.ir.var import Var
from onnxgrad.laws import product_costs
from onnxgrad.laws.composites import attention_chain, attention_masks
from onnxgrad.laws.constant_values import fixed_value
from tests.helpers import parse

DEPTH = 40
SECONDS = 30.0  # of CPU: each case takes less than one

STEPS = {
    "Add": "Add(v{0}, v{0})",
    "Sub": "Sub(v{0}, v{0})",
    "Mul": "Mul(v{0}, v{0})",
    "Min": "Min(v{0}, v{0})",
    "Max": "Max(v{0}, v{0})",
    "Where": "Where(c, v{0}, v{0})",
}
PRODUCT = "MatMul(v{0}, v{0})"
FLOATS = {**STEPS, "Div": "Div(v{0}, v{0})", "MatMul": PRODUCT}
# what may look at the operands behind it
READERS = {
    "root": "y = Sqrt(last)",
    "scores": "p = MatMul(x, x) s = Add(p, last) t = Softmax(s) y = MatMul(t, x)",
    "sum": "a = Mul(last, x) b = Mul(x, last) y = Add(a, b)",
    "choice": "z = Log(last) d = Greater(last, x) y = Where(d, z, x)",
}


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        pytest.fail("an operand is visited once for each path to it")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def chain(step: str, first: str) -> str:
    steps = " ".join(f"v{i + 1} = {step.format(i)}" for i in range(DEPTH))
    return f"{first} {steps} last = Identity(v{DEPTH})"


def of_floats(
    step: str, reader: str, first: str = "v0 = Tanh(x)", opset: int = 18
) -> onnx.ModelProto:
    body = f"{chain(step, first)} {reader}"
    return parse(f"g (float[4,4] x, bool c) => (float[4,4] y) {{ {body} }}", opset=opset)


def over_constants(step: str, reader: str) -> onnx.ModelProto:
    numbers = ", ".join(["0.5"] * 16)
    first = "k = Constant<value_ints = [4, 4]>() v0 = Reshape(one, k)"
    first = f"one = Constant<value_floats = [{numbers}]>() {first}"
    return of_floats(FLOATS[step], reader, first)


def of_sizes(step: str) -> onnx.ModelProto:
    body = f"{chain(step, 'v0 = Shape(x)')} y = Slice(x, k, last, k)"
    head = "g (float[N] x, bool c) => (float[A] y) <int64[1] k = {0}>"
    return parse(f"{head} {{ {body} }}", opset=13)


JOBS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "optimize": lambda m: onnxgrad.optimize(m, verify=False),
    "float16": lambda m: onnxgrad.float16(m, verify=False),
    "gradient": lambda m: onnxgrad.gradient(m, "x"),
    "older": lambda m: onnxgrad.convert_opset(m, 9, verify=False),
    "newer": lambda m: onnxgrad.optimize(m, target_opset=23, verify=False),
    "vmap": lambda m: onnxgrad.vmap(m, verify=False),
    "inspect": onnxgrad.inspect,
    "verify": lambda m: onnxgrad.verify(m, m, checks=["float64"]),
}


# the functions that recurse over operands
FUNCTIONS: dict[str, Callable[[Var], Any]] = {
    "fixed_value": fixed_value,
    "bounds": attention_masks.bounds,
    "_is_score": attention_chain._is_score,
    "_is_squares": lambda v: safe_forms._is_squares(v, DEPTH, {}),
    "_is_number": safe_forms._is_number,
    "_is_bounded_by_zero": safe_forms._is_bounded_by_zero,
    "_value": lambda v: branches._value(v, {}, DEPTH),
    "fixed": product_costs.fixed,
}


@pytest.mark.parametrize("step", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_over_operands(name: str, step: str) -> None:
    for model in (of_floats(FLOATS[step], "y = Neg(last)"), over_constants(step, "y = Neg(last)")):
        value = load(model).main.outputs[0].definition
        assert value is not None and value.inputs[0] is not None
        FUNCTIONS[name](value.inputs[0].definition.inputs[0])


def test_the_terms_of_a_sum() -> None:
    body = chain(STEPS["Mul"], "v0 = Tanh(x)") + " a = Mul(v12, x) b = Mul(x, v12) y = Add(a, b)"
    model = parse(f"g (float[4,4] x) => (float[4,4] y) {{ {body} }}")
    assert [n.op_type for n in onnxgrad.optimize(model, verify=False).graph.node].count("Add") == 1


def done(job: str, model: onnx.ModelProto) -> None:
    # a refusal in time is an answer, and so is a gradient of zeros
    with contextlib.suppress(onnxgrad.OnnxgradError, UserWarning):
        JOBS[job](model)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("step", FLOATS)
def test_floats(step: str, reader: str, job: str) -> None:
    done(job, of_floats(FLOATS[step], READERS[reader]))


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("step", FLOATS)
def test_floats_over_constants(step: str, job: str) -> None:
    done(job, over_constants(step, READERS["scores"]))


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("step", STEPS)
def test_sizes(step: str, job: str) -> None:
    done(job, of_sizes(STEPS[step]))
