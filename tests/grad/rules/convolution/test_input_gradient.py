"""onnxgrad/grad/rules/convolution/_input_gradient.py: every form against a sum written out in
numpy, and which one is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from onnxgrad import gradient
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.rules.convolution import _input_gradient as module
from onnxgrad.grad.rules.convolution._input_gradient import input_gradient
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, operators
from tests.grad.rules.convolution.sizes import Case, axis, cases, check
from tests.helpers import parse


def by(form: Any, case: Case) -> Callable[[Var, Var, Var], Var]:
    """What emits one form of the gradient by long, without asking whether it is quick."""

    def emit(long: Var, short: Var, w: Var) -> Var:
        sizes = module._sizes(short, w, long, case.geo, case.group)
        assert sizes is not None
        found: Var = form(short, w, sizes, case.geo)
        return found

    return emit


def chosen(case: Case) -> onnx.ModelProto:
    return case.graph(lambda long, short, w: input_gradient(short, w, long, case.geo, case.group))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(cases())
def test_every_form_is_the_definition(make: Callable[[], Case]) -> None:
    case = make()
    check(case, chosen(case), case.by_long())
    case = make()
    if module._can_be_flipped(case.geo) and max(case.kernel) > 1:
        check(case, case.graph(by(module._by_flipped_conv, case)), case.by_long())
    case = make()
    _, short, _ = case.program.main.inputs
    known = short.shape is not None and all(isinstance(d, int) for d in short.shape[2:])
    if case.group == 1 and known and len(case.kernel) == 2:
        check(case, case.graph(by(module._by_products, case)), case.by_long())


Sizes = tuple[Any, ...]
# (batch, group, channels, maps, axes), symbolic -> the operator, the weight a constant and fed
CHOSEN: list[tuple[Sizes, str, str, str]] = [
    ((2, 1, 16, 3, [axis(5), axis(6)]), "", "Conv", "ConvTranspose"),
    ((2, 1, 16, 3, [axis(5), axis(6)]), "nd", "Conv", "ConvTranspose"),
    ((2, 1, 16, 3, [axis(25), axis(26)]), "n", "Conv", "Conv"),
    ((2, 1, 15, 3, [axis(5), axis(6)]), "", "ConvTranspose", "ConvTranspose"),  # few channels
    ((2, 1, 16, 3, [axis(5, 1, 1, 0)]), "", "ConvTranspose", "ConvTranspose"),  # one pixel
    ((2, 1, 16, 3, [axis(5, 3, 2)]), "", "ConvTranspose", "ConvTranspose"),  # strides
    ((2, 1, 16, 3, [axis(5, 3, 1, 3)]), "", "ConvTranspose", "ConvTranspose"),  # only zeros read
    ((2, 5, 1, 1, [axis(5), axis(6)]), "d", "Conv", "Conv"),
    ((2, 5, 1, 1, [axis(7, 5), axis(9, 7)]), "d", "Conv", "ConvTranspose"),
    ((2, 5, 1, 1, [axis(7, 2), axis(9, 5)]), "d", "Conv", "ConvTranspose"),  # ten taps
    ((2, 2, 16, 3, [axis(5), axis(6)]), "", "Conv", "ConvTranspose"),
    ((2, 1, 3, 32, [axis(2), axis(2)]), "", "Col2Im", "Col2Im"),
    ((2, 1, 3, 32, [axis(2), axis(2)]), "n", "Col2Im", "Col2Im"),
    ((1, 1, 3, 32, [axis(2), axis(2)]), "", "ConvTranspose", "ConvTranspose"),
    ((2, 1, 16, 32, [axis(2), axis(2)]), "", "Conv", "Col2Im"),
    ((2, 1, 3, 256, [axis(2), axis(2)]), "", "Col2Im", "Col2Im"),
    ((2, 1, 3, 32, [axis(4, 3, 2), axis(4, 3, 2)]), "", "Col2Im", "Col2Im"),
    ((2, 1, 3, 32, [axis(2, 1, 1, 0), axis(2, 1, 1, 0)]), "", "MatMul", "MatMul"),
    ((2, 1, 3, 99, [axis(4)]), "", "ConvTranspose", "ConvTranspose"),  # no plane
]


@pytest.mark.parametrize(("sizes", "symbolic", "constant", "fed"), CHOSEN)
def test_which_form_is_chosen(sizes: Sizes, symbolic: str, constant: str, fed: str) -> None:
    case = Case(*sizes, symbolic=symbolic)
    check(case, chosen(case), case.by_long())
    assert fed in operators(chosen(Case(*sizes, symbolic=symbolic)))
    case = Case(*sizes, symbolic=symbolic)
    assert constant in operators(fixed(case))
    check(case, fixed(Case(*sizes, symbolic=symbolic)), case.by_long())


def fixed(case: Case) -> onnx.ModelProto:
    """The same graph, its weight an initializer."""
    block = case.program.main
    tensor = onnx.numpy_helper.from_array(case.feeds()["w"], "fixed")
    weight = block.add_initializer(tensor)
    return case.graph(
        lambda long, short, _: input_gradient(short, weight, long, case.geo, case.group)
    )


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(("sizes", "symbolic", "constant", "fed"), CHOSEN)
def test_no_images(sizes: Sizes, symbolic: str, constant: str, fed: str, optimize: bool) -> None:
    case = Case(0, *sizes[1:], symbolic=symbolic + "n")
    graph = chosen(case)
    (found,) = run(graph, case.feeds(), optimize=optimize).values()
    assert found.shape == case.by_long().shape


@pytest.mark.parametrize("opset", [11, 13, 18, 22])
@pytest.mark.parametrize("w", [(9, 16, 3, 3), (256, 3, 3, 3)])
def test_gradients_with_the_weight_a_constant(w: tuple[int, ...], opset: int) -> None:
    feeds = {"x": normal(2, w[1], 2, 2)}
    node = "y = Conv <pads = [1, 1, 1, 1]> (x, w)"
    constants = {"w": normal(*w)}
    check_op(node, feeds, ["x", "w"], constants=constants, opset=opset, seeds=(0,))


TWICE = """g (float[2,16,5,5] x) => (float loss) <float[16,16,3,3] w> {
    y = Conv <pads = [1, 1, 1, 1]> (x, w)
    t = Tanh (y)
    z = Conv <pads = [1, 1, 1, 1]> (t, w)
    loss = ReduceSum <keepdims = 0> (z)
}"""


@pytest.mark.parametrize("replaced", [True, False])
def test_a_weight_whose_value_others_will_give(replaced: bool) -> None:
    """A training step feeds it: nothing is folded then, and flipping would take its time."""
    model = parse(TWICE)
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(16, 16, 3, 3), "w"))
    program = differentiate(load(model), "w", "loss", replaced=replaced).program
    assert ("ConvTranspose" in operators(to_proto(program))) == replaced


def test_a_weight_that_is_an_input() -> None:
    fed = TWICE.replace(" <float[16,16,3,3] w>", "").replace("x)", "x, float[16,16,3,3] w)", 1)
    model = parse(fed)
    assert "ConvTranspose" in operators(gradient(model, "w", "loss"))


@pytest.mark.parametrize("dtype", [np.float16])
def test_dtypes(dtype: Any) -> None:
    for sizes, symbolic, *_ in CHOSEN[:1] + CHOSEN[7:8] + CHOSEN[10:11] + CHOSEN[16:]:
        case = Case(*sizes, symbolic=symbolic, dtype="float16")
        (found,) = run(chosen(case), case.feeds(dtype)).values()
        assert found.dtype == dtype
        close = 4e-3 * np.abs(case.by_long()).max()
        np.testing.assert_allclose(found, case.by_long(), rtol=0, atol=close)
