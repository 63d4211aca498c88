"""onnxgrad/grad/rules/convolution/_weight_gradient.py and _correlation.py: every
form against a sum written out in numpy, and which one is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from onnxgrad.grad.rules.convolution import _weight_gradient as forms
from onnxgrad.grad.rules.convolution._correlation import Correlation
from onnxgrad.grad.rules.convolution._weight_gradient import _form, weight_gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal
from tests.grad.rules.convolution.sizes import Case, axis, cases, check


def correlation(case: Case) -> Correlation:
    long, short, _ = case.program.main.inputs
    return Correlation(long, short, case.geo, case.group, case.maps, case.channels, case.kernel)


def chosen(case: Case) -> onnx.ModelProto:
    """The graph of what is chosen."""
    return case.graph(partial(weight_gradient, geo=case.geo, group=case.group))


def applicable(c: Correlation) -> list[Any]:
    """The forms that may be asked, whether or not they would be chosen."""
    pointwise = c.taps == 1 and not any(c.geo.begin) and not any(c.geo.end)
    unstrided = all(s == 1 for s in c.geo.strides)
    found: list[Any] = []
    if c.group == 1 or c.sizes is not None:
        found.append(forms.by_offsets)
    if c.group == 1 and c.sizes is not None:
        found += [forms.by_gathered_rows, forms.by_unfolding]
        found += [forms.by_images] if pointwise else []
        if c.axes == 2:
            found.append(forms.by_lines)
            found += [forms.by_crossing] if c.positions and c.geo.strides[0] == 1 else []
    if c.group == 1 and pointwise and (unstrided or c.sizes is not None):
        found.append(forms.by_joined_images)
    if c.channels == 1 and c.maps == c.group:
        found.append(forms.by_elements)
        found += [forms.by_pairs] if c.sizes is not None else []
        found += [forms.by_line_pairs] if c.sizes is not None and c.axes == 2 else []
    return found


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(cases())
def test_every_form_is_the_definition(make: Callable[[], Case]) -> None:
    case = make()
    check(case, chosen(case), case.by_weight())
    if case.end == case.begin:  # elsewhere onnxruntime's own Conv would need the zeros after
        general = make()
        swapped = partial(forms.by_swapped_conv, geo=general.geo, group=general.group)
        check(general, general.graph(swapped), general.by_weight())
    for form in applicable(correlation(make())):
        case = make()
        check(case, case.graph(lambda *_, c=case, f=form: f(correlation(c))), case.by_weight())


# what is chosen -> (batch, group, channels, maps, axes), symbolic
CHOSEN: list[tuple[Any, tuple[Any, ...], str]] = [
    (forms.by_crossing, (2, 1, 8, 8, [axis(5), axis(6)]), ""),
    (forms.by_crossing, (1, 1, 9, 4, [axis(9, 3, 1, 3), axis(9, 2, 2, 0)]), ""),
    (forms.by_lines, (2, 1, 8, 8, [axis(9, 3, 2), axis(6)]), ""),
    (forms.by_offsets, (2, 1, 8, 8, [axis(5), axis(6)]), "n"),
    (forms.by_offsets, (1, 1, 8, 8, [axis(5), axis(3), axis(3)]), ""),
    (forms.by_offsets, (2, 1, 8, 99, [axis(2), axis(2)]), "n"),  # positions are not known
    (forms.by_offsets, (2, 1, 8, 99, [axis(2), axis(2)]), "d"),
    (forms.by_offsets, (2, 2, 8, 99, [axis(2), axis(2)]), "n"),
    (forms.by_offsets, (2, 1, 8, 4, [axis(5, 1, 2, 0)]), "d"),
    (forms.by_offsets, (1, 1, 9, 4, [axis(5, 1, 1, 1)]), ""),  # one pixel, but padded
    (None, (2, 2, 8, 99, [axis(2), axis(2)]), "d"),
    (None, (2, 1, 7, 8, [axis(5), axis(6)]), ""),  # few channels
    (None, (2, 1, 8, 8, [axis(9, 9, 1, 4), axis(9, 9, 1, 4)]), ""),  # many pixels
    (None, (2, 3, 1, 2, [axis(9), axis(9)]), ""),  # two maps for each channel
    (forms.by_gathered_rows, (2, 1, 8, 8, [axis(2), axis(2)]), ""),
    (forms.by_unfolding, (2, 1, 8, 32, [axis(2), axis(2)]), ""),
    (forms.by_images, (2, 1, 3, 4, [axis(9, 1, 1, 0), axis(9, 1, 1, 0)]), ""),
    (forms.by_images, (2, 1, 3, 4, [axis(9, 1, 2, 0), axis(9, 1, 3, 0)]), "n"),
    (forms.by_joined_images, (2, 1, 8, 8, [axis(2, 1, 1, 0)]), ""),
    (forms.by_joined_images, (2, 1, 8, 8, [axis(9, 1, 1, 0)]), "d"),
    (forms.by_pairs, (2, 5, 1, 1, [axis(4), axis(4)]), "n"),
    (forms.by_pairs, (8, 5, 1, 1, [axis(8, 7, 1, 3), axis(8, 7, 1, 3)]), ""),
    (forms.by_line_pairs, (1, 5, 1, 1, [axis(8, 7, 1, 3), axis(8, 7, 1, 3)]), ""),
    (forms.by_elements, (2, 5, 1, 1, [axis(9), axis(9)]), ""),
    (forms.by_elements, (2, 5, 1, 1, [axis(4), axis(4)]), "d"),
    (forms.by_elements, (2, 5, 1, 1, [axis(19, 3, 2), axis(19, 3, 2)]), ""),
    (None, (2, 5, 1, 1, [axis(4, 3, 2), axis(4, 3, 2)]), "d"),
    (None, (1, 400, 1, 1, [axis(20, 5, 1, 2), axis(20, 5, 1, 2)]), "n"),
    (forms.by_line_pairs, (1, 400, 1, 1, [axis(20, 5, 1, 2), axis(20, 5, 1, 2)]), ""),
    (forms.by_line_pairs, (2, 9, 1, 1, [axis(14, 5, 1, 2), axis(15, 4, 1, 2)]), ""),
]


@pytest.mark.parametrize(("form", "sizes", "symbolic"), CHOSEN)
def test_which_form_is_chosen(form: Any, sizes: tuple[Any, ...], symbolic: str) -> None:
    case = Case(*sizes, symbolic=symbolic)
    assert _form(correlation(case)) is form
    check(case, chosen(case), case.by_weight())


def test_large_images_are_not_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_UNFOLDED", 2880)
    (_, sizes, _), *_ = CHOSEN
    assert _form(correlation(Case(*sizes))) is forms.by_crossing  # 60 positions, 48 numbers each
    monkeypatch.setattr(forms, "_UNFOLDED", 2879)
    assert _form(correlation(Case(*sizes))) is forms.by_offsets


@pytest.mark.covering(2)
@pytest.mark.parametrize(("form", "sizes", "symbolic"), CHOSEN)
@pytest.mark.parametrize("optimize", [True, False])
def test_no_images(form: Any, sizes: tuple[Any, ...], symbolic: str, optimize: bool) -> None:
    """A batch of none: the gradient is zero. The form was chosen without knowing the batch."""
    sizes = (0, *sizes[1:])
    for symbol in {"n", symbolic + "n"}:
        case = Case(*sizes, symbolic=symbol)
        if _form(correlation(case)) is None:
            continue  # onnxruntime's Conv refuses an empty kernel
        graph = chosen(case)
        (found,) = run(graph, case.feeds(), optimize=optimize).values()
        assert found.shape == case.by_weight().shape and not found.any()


@pytest.mark.covering
@pytest.mark.parametrize("opset", [18, 20, 21, 23])
@pytest.mark.parametrize(("form", "sizes", "symbolic"), CHOSEN[:4] + CHOSEN[14:25])
def test_opsets(form: Any, sizes: tuple[Any, ...], symbolic: str, opset: int) -> None:
    case = Case(*sizes, symbolic=symbolic, opset=opset)
    check(case, chosen(case), case.by_weight())


@pytest.mark.parametrize("dtype", ["float16", "double"])
@pytest.mark.parametrize(("form", "sizes", "symbolic"), CHOSEN[:4] + CHOSEN[14:25])
def test_dtypes(form: Any, sizes: tuple[Any, ...], symbolic: str, dtype: str) -> None:
    """These forms need no kernel that onnxruntime lacks for a dtype, as the Conv's is for double."""
    case = Case(*sizes, symbolic=symbolic, dtype=dtype)
    kind = np.float16 if dtype == "float16" else np.float64
    (found,) = run(chosen(case), case.feeds(kind)).values()
    want = case.by_weight()
    assert found.dtype == kind
    np.testing.assert_allclose(
        found, want, rtol=0, atol=(4e-3 if kind == np.float16 else 1e-12) * np.abs(want).max()
    )


@pytest.mark.parametrize(
    ("node", "x", "w"),
    [
        ("Conv <pads = [1, 1, 1, 1]>", (2, 8, 5, 5), (9, 8, 3, 3)),
        ("Conv <pads = [1, 1, 1, 1]>", (1, 8, 3, 3), (40, 8, 3, 3)),
        ("Conv <pads = [1, 1, 1, 1]>", (1, 8, 3, 3), (12, 8, 3, 3)),
        ('Conv <auto_pad = "SAME_UPPER", strides = [2, 3]>', (2, 8, 6, 7), (9, 8, 3, 4)),
        ("Conv <group = 2, strides = [2, 1], pads = [1, 0, 1, 0]>", (2, 16, 5, 4), (6, 8, 3, 2)),
        ("Conv <group = 3, pads = [1, 1, 1, 1]>", (2, 3, 4, 7), (3, 1, 3, 3)),
        ("ConvTranspose <strides = [2, 2], output_padding = [1, 1]>", (2, 9, 3, 3), (9, 8, 3, 3)),
        ("ConvTranspose <group = 2, strides = [2, 2]>", (2, 6, 3, 3), (6, 8, 2, 2)),
        ('ConvTranspose <auto_pad = "SAME_LOWER", strides = [2, 2]>', (2, 9, 3, 3), (9, 8, 3, 4)),
        ("Conv <pads = [1, 1]>", (2, 8, 7), (9, 8, 3)),
        ("Conv <pads = [1, 0, 1, 0, 1, 1]>", (2, 8, 2, 3, 3), (4, 8, 3, 2, 2)),
    ],
)
def test_gradients_of_some_channels(node: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    """Numeric checks where the products are taken; `test_conv` has fewer channels."""
    feeds = {"x": normal(*x), "w": normal(*w)}
    check_op(f"y = {node} (x, w)", feeds, symbolic=False)
    check_op(
        f"y = {node} (x, w)",
        {"x": feeds["x"]},
        ["x", "w"],
        constants={"w": feeds["w"]},
        symbolic=True,
    )


@pytest.mark.parametrize("opset", [11, 13, 17, 22])
def test_older_and_newer_files(opset: int) -> None:
    feeds = {"x": normal(2, 8, 5, 5), "w": normal(9, 8, 3, 3)}
    check_op("y = Conv <pads = [1, 1, 1, 1]> (x, w)", feeds, symbolic=False, opset=opset)


def test_a_weight_gradient_does_not_end_in_a_reshape_of_a_transpose() -> None:
    """onnxruntime exchanged the two for nodes that it ran before all others, so that all activations stayed: the peak of
    a ResNet was 76 MB in place of 51, of a MobileNet 88 in place of 65.
    """
    for form in (forms.by_offsets, forms.by_gathered_rows):
        case = Case(2, 1, 8, 4, [axis(6), axis(6)])
        graph = case.graph(lambda g, x, w, form=form, case=case: form(correlation(case))).graph
        makers = {o: n for n in graph.node for o in n.output}
        last = makers[graph.output[0].name]
        assert last.op_type == "Transpose" and makers[last.input[0]].op_type == "Reshape"
