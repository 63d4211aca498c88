"""Col2Im against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.grad.numeric import check_model, check_op, normal
from tests.helpers import parse


def test_strides_pads_and_dilations_at_once() -> None:
    check_op(
        "y = Col2Im <strides = [1, 2], pads = [1, 0, 0, 1], dilations = [1, 2]> (x, s, b)",
        {"x": normal(1, 8, 10)},
        constants={"s": np.array([5, 5]), "b": np.array([2, 2])},
        symbolic=False,
    )


# attributes, and how many positions a block of 2 x 3 has in an image of 5 x 6
WINDOWS = {
    "": 4 * 4,
    "<strides = [2, 1]>": 2 * 4,
    "<dilations = [1, 2]>": 4 * 2,
    "<pads = [1, 0, 0, 2], strides = [1, 2]>": 5 * 3,
    "<pads = [0, 1, 1, 0], strides = [2, 3], dilations = [2, 1]>": 2 * 2,
}


@pytest.mark.parametrize("at_run_time", [False, True])
@pytest.mark.parametrize("attributes", WINDOWS)
def test_col2im(attributes: str, at_run_time: bool) -> None:
    sizes = {"image": np.array([5, 6]), "block": np.array([2, 3])}
    feeds = {"x": normal(2, 3 * 2 * 3, WINDOWS[attributes])}
    node = f"y = Col2Im {attributes} (x, image, block)"
    if at_run_time:  # how many axes the image has must be declared then
        model = parse(
            f"g (float[a,b,c] x, int64[2] image, int64[2] block) => (float[N,C,H,W] y) {{ {node} }}"
        )
        check_model(model, {**feeds, **sizes})
    else:
        check_op(node, feeds, constants=sizes)
