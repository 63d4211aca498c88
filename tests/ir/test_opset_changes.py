"""Which nodes mean the same at another opset version."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.ir.load import load
from onnxgrad.ir.opset_changes import changes_meaning


def changed(node: str, written: int, opset: int) -> bool:
    """Whether this node of a model at opset `written` means something else at `opset`."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {written}, "my.domain" : 1]> '
        f"g (float[4,6,5,5] x, float[3,4] r, int64[3] i, int64[2] n, float[2] s) => (y) {{ {node} }}"
    )
    *_, last = load(model).main.bindings
    found = changes_meaning(last, opset)
    if found is not None:
        name = node.split("= ")[1].split(" ")[0]
        here = f"opset {written} of domain '', here it is {opset}, and {name} changed"
        assert found == f"its body is written for {here}"
    return found is not None


@pytest.mark.parametrize(
    ("node", "written", "opset"),
    [
        ("y = ReduceSum <axes = [1]> (x)", 12, 13),  # axes became an operand
        ("y = Clip <min = 0.0> (x)", 10, 11),
        ("y = RoiAlign (x, r, i)", 15, 16),  # the default moved by half a pixel
        ("y = GroupNormalization <num_groups = 2> (x, s, s)", 18, 21),
        ("y, z = Split <axis = 1> (x)", 13, 18),  # equal parts need an attribute since then
        ("y = Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (x)", 7, 10),  # deprecated
    ],
)
def test_nodes_that_change(node: str, written: int, opset: int) -> None:
    assert changed(node, written, opset)


@pytest.mark.parametrize(
    ("node", "written", "opset"),
    [
        ("y = ReduceSum <axes = [1]> (x)", 12, 12),
        ("y = Relu (x)", 13, 14),  # more dtypes
        ("y = Squeeze (x)", 12, 13),  # an attribute that is not set became an operand
        ("y, z = Split <axis = 1> (x, n)", 13, 18),
        ("y = RoiAlign (x, r, i)", 16, 22),
        ("y = my.domain.Unknown (x)", 12, 13),
    ],
)
def test_nodes_that_do_not(node: str, written: int, opset: int) -> None:
    assert not changed(node, written, opset)
