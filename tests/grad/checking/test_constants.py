"""onnxgrad/grad/checking/constants.py: what a gradient adds to a model is off by a unit, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.grad.checking.constants import constants_shifted
from tests.helpers import parse

SOURCE = "g (float[2] x) => (float[2] y) <float[2] w = {0.1, 0.2}> { y = Mul (x, w) }"
GRAPH = """<ir_version: 10, opset_import: ["": 20, "f": 1]>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {0.1, 0.2}, float third = {0.333333343}, float half = {0.5}, float[2,1] turned = {-0.2, 0.1}, int64 n = {3}> {
      a = Mul (x, w) b = f.scale (a)
      y = If (c) <then_branch = t () => (float[2] z) { k = Constant <value = float {0.3}> () z = Mul (b, k) },
                  else_branch = e () => (float[2] z) { z = Mul (b, third) }> }
    <domain: "f", opset_import: ["": 20]> scale (a) => (r) { s = Constant <value = float {0.7}> () r = Mul (a, s) }"""


def test_rounded_numbers_of_its_own_are_off_by_one_unit() -> None:
    graph = parse(GRAPH)
    shifted = constants_shifted(graph, parse(SOURCE), 0)
    assert shifted is not None
    found = {t.name: numpy_helper.to_array(t) for t in shifted.graph.initializer}
    assert found["w"].dtype == np.float32 and found["half"].dtype == np.float32
    assert np.array_equal(found["turned"], [[np.float32(-0.2)], [np.float32(0.1)]])
    branch = shifted.graph.node[2].attribute[0].g.node[0].attribute[0].t
    inside = shifted.functions[0].node[0].attribute[0].t
    for moved, value in (
        (found["third"], 1 / 3),
        (numpy_helper.to_array(branch), 0.3),
        (numpy_helper.to_array(inside), 0.7),
    ):
        assert abs(moved / float(np.float32(value)) - 1) == pytest.approx(2.0**-24, rel=1e-6)
    assert graph == parse(GRAPH)


def test_nothing_of_its_own_that_was_rounded() -> None:
    other = onnx.ModelProto()
    other.CopyFrom(parse(GRAPH))
    assert constants_shifted(other, parse(GRAPH), 0) is None
