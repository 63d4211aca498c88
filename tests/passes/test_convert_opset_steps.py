"""onnxgrad/laws/opsets: every operator that changed, from the opset before to the newest; and back where that is lossless."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import save, to_proto
from onnxgrad.laws.lower_opset import _ANOTHER_MEANING
from onnxgrad.laws.raise_opset import ADAPTERS
from onnxgrad.passes.convert_opset import NEWEST, OLDEST, convert, form_changes, since
from onnxgrad.verify import verify
from onnxgrad.verify.running.session import run
from tests import suite_table
from tests.backend_suite import clamp_ir
from tests.helpers import onnxruntime_version
from tests.rewriting import model_of

# the newest opset that the installed onnxruntime runs
RUNS = NEWEST if onnxruntime_version() >= (1, 32) else 26


def converted(model: onnx.ModelProto, to: int) -> onnx.ModelProto:
    program = load(model)
    convert(program, to)
    for block in program.blocks():
        block.schedule()
        block.check()
    made = to_proto(program)
    onnx.checker.check_model(made)
    assert {o.version for o in made.opset_import if not o.domain} == {to}
    return made


def prove(before: onnx.ModelProto, after: onnx.ModelProto, **options: Any) -> None:
    report = verify(before, after, seeds=(0,), **options)
    assert report.ok, str(report)


# the changed operator, the opset before, a graph
RAISED = {
    "Squeeze": (12, "g (float[2,1,S,1] x) => (float[2,S] y) { y = Squeeze <axes = [1, 3]> (x) }"),
    "Squeeze of all": (12, "g (float[2,1,3,1] x) => (float[2,3] y) { y = Squeeze (x) }"),
    "Unsqueeze": (12, "g (float[2,S] x) => (float[1,2,1,S] y) { y = Unsqueeze <axes = [0, 2]> (x) }"),
    "ReduceSum": (12, "g (float[2,S,3] x) => (float[2,S] y) { y = ReduceSum <axes = [-1], keepdims = 0> (x) }"),
    "ReduceSum of all": (12, "g (float[2,S,3] x) => (float[1,1,1] y) { y = ReduceSum (x) }"),
    **{f"{name}": (17, f"g (float[2,S,3] x) => (float[2,1,3] y) {{ y = {name} <axes = [1]> (x) }}") for name in
       ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare")},
    "ReduceLogSum": (17, "g (float[2,S,3] x) => (float[2,1,3] y) { e = Exp(x) y = ReduceLogSum <axes = [1]> (e) }"),
    "Split": (12, "g (float[5,S] x) => (float[2,S] y, float[3,S] z) { y, z = Split <axis = 0, split = [2, 3]> (x) }"),
    "Split evenly": (11, "g (float[6,S] x) => (float[2,S] y, float[2,S] z, float[2,S] w) { y, z, w = Split (x) }"),
    "Slice": (9, "g (float[5,6] x) => (float[3,2] y) { y = Slice <starts = [1, -4], ends = [4, -2], axes = [0, 1]> (x) }"),
    "Slice of the first axes": (9, "g (float[5,6] x) => (float[3,6] y) { y = Slice <starts = [1], ends = [4]> (x) }"),
    "TopK": (9, "g (float[2,6] x) => (float[2,3] y, int64[2,3] z) { y, z = TopK <k = 3, axis = 1> (x) }"),
    "Pad": (10, "g (float[2,3] x) => (float[3,6] y) { y = Pad <pads = [1, 2, 0, 1], value = 1.5> (x) }"),
    "Pad by nothing else": (10, "g (float[2,3] x) => (float[3,6] y) { y = Pad <pads = [1, 2, 0, 1]> (x) }"),
    "Pad by reflection": (10, 'g (float[4,5] x) => (float[5,8] y) { y = Pad <mode = "reflect", pads = [1, 2, 0, 1]> (x) }'),
    "Clip": (10, "g (float[2,S] x) => (float[2,S] y) { y = Clip <min = -0.5, max = 0.25> (x) }"),
    "Clip from above": (7, "g (float[2,S] x) => (float[2,S] y) { y = Clip <max = 0.25> (x) }"),
    "Clip of nothing": (10, "g (float[2,S] x) => (float[2,S] y) { y = Clip (x) }"),
    "Dropout": (11, "g (float[2,S] x) => (float[2,S] y) { y = Dropout <ratio = 0.25> (x) }"),
    "Dropout of 7": (7, "g (float[2,S] x) => (float[2,S] y) { y = Dropout (x) }"),
    "Upsample of 7": (7, 'g (float[1,2,3,4] x) => (float[1,2,6,12] y) { y = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 3.0]> (x) }'),
    "Upsample of 9": (9, 'g (float[1,2,3,4] x) => (float[1,2,6,12] y) <float[4] s = {1, 1, 2, 3}> { y = Upsample <mode = "linear"> (x, s) }'),
    "Resize": (10, 'g (float[1,2,3,4] x) => (float[1,2,7,10] y) <float[4] s = {1, 1, 2.5, 2.5}> { y = Resize <mode = "nearest"> (x, s) }'),
    "Resize of an open axis": (10, 'g (float[1,2,S,4] x) => (float[1,2,T,4] y) <float[4] s = {1, 1, 2, 1}> { y = Resize <mode = "nearest"> (x, s) }'),
    "Resize to less": (10, 'g (float[1,1,2,4] x) => (float[1,1,1,2] y) <float[4] s = {1, 1, 0.6, 0.6}> { y = Resize <mode = "nearest"> (x, s) }'),
    "Resize linear": (10, 'g (float[1,2,6,8] x) => (float[1,2,3,4] y) <float[4] s = {1, 1, 0.5, 0.5}> { y = Resize <mode = "linear"> (x, s) }'),
    "Resize of 12": (12, 'g (float[1,2,3,4] x) => (float[1,2,6,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> { y = Resize <mode = "cubic", coordinate_transformation_mode = "align_corners"> (x, r, s) }'),
    "Scatter": (10, "g (float[3,3] x, float[1,3] u) => (float[3,3] y) <int64[1,3] i = {1, 0, 2}> { y = Scatter (x, i, u) }"),
    "Softmax over the last axes": (12, "g (float[2,S,3] x) => (float[2,S,3] y) { y = Softmax <axis = 1> (x) }"),
    "Softmax by default": (12, "g (float[2,S,3] x) => (float[2,S,3] y) { y = Softmax (x) }"),
    "Softmax over one": (12, "g (float[2,S,3] x) => (float[2,S,3] y) { y = Softmax <axis = 2> (x) }"),
    "LogSoftmax": (11, "g (float[2,S,3] x) => (float[2,S,3] y) { y = LogSoftmax <axis = 0> (x) }"),
    "Hardmax": (12, "g (float[2,S,3] x) => (float[2,S,3] y) { y = Hardmax <axis = -2> (x) }"),
    "BatchNormalization": (8, "g (float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}, float[3] m = {1, 0, 2}, float[3] v = {1, 3, 2}> { y = BatchNormalization <spatial = 1> (x, s, b, m, v) }"),
    "BatchNormalization of 13": (13, "g (float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}, float[3] m = {1, 0, 2}, float[3] v = {1, 3, 2}> { y = BatchNormalization <momentum = 0.5> (x, s, b, m, v) }"),
    "RoiAlign": (15, "g (float[1,2,6,6] x) => (float[1,2,2,2] y) <float[1,4] r = {0, 0, 4, 4}, int64[1] i = {0}> { y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, r, i) }"),
    "GridSample": (19, 'g (float[1,2,6,6] x, float[1,3,3,2] grid) => (float[1,2,3,3] y) { y = GridSample <mode = "bicubic"> (x, grid) }'),
    "GridSample by default": (16, "g (float[1,2,6,6] x, float[1,3,3,2] grid) => (float[1,2,3,3] y) { y = GridSample (x, grid) }"),
    "DFT": (19, "g (float[1,8,1] x) => (float[1,8,2] y) { y = DFT <axis = 1> (x) }"),
    "Attention": (23, "g (float[2,4,3,4] q, float[2,4,5,4] k, float[2,4,5,4] v) => (float[2,4,3,4] y) { y = Attention <is_causal = 1> (q, k, v) }"),
    "Attention with a softcap": (23, "g (float[2,4,3,4] q, float[2,4,5,4] k) => (float[2,4,3,4] y) { y = Attention <softcap = 2.0> (q, k, k) }"),
    "Attention with a softcap and a mask": (23, "g (float[2,4,3,4] q, float[2,4,5,4] k, float[3,5] m) => (float[2,4,3,4] y) { y = Attention <softcap = 2.0> (q, k, k, m) }"),
    "AveragePool": (18, "g (float[1,2,7,8] x) => (float[1,2,4,4] y) { y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1, count_include_pad = 1> (x) }"),
    "LpPool": (17, "g (float[1,2,7,8] x) => (float[1,2,3,3] y) { y = LpPool <kernel_shape = [3, 3], strides = [2, 2]> (x) }"),
    "GRU": (13, "g (float[S,2,3] x, float[1,12,3] w, float[1,12,4] r) => (float[S,1,2,4] y) { y = GRU <hidden_size = 4> (x, w, r) }"),
    "Gemm": (10, "g (float[2,3] x, float[3,4] b, float[4] c) => (float[2,4] y) { y = Gemm (x, b, c) }"),
}  # fmt: skip


def model(text: str, opset: int) -> onnx.ModelProto:
    return model_of(text, opset=opset, ir_version=8)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("opset", "text"), RAISED.values(), ids=RAISED)
def test_raised(opset: int, text: str, every: bool) -> None:
    """To the next opset and through all steps to the newest; `every` to those between as well."""
    before = model(text, opset)
    # onnxruntime has no RoiAlign of 22, onnx.reference no Hardmax of 12 over several axes
    newest = 21 if "RoiAlign" in text else RUNS
    checks = {"checks": ("onnxruntime",)} if "Hardmax" in text else {}
    for to in sorted({opset + 1, 13, 18, 21, 23, 26, NEWEST} if every else {opset + 1, newest}):
        if opset < to <= newest:
            prove(before, converted(before, to), **checks)


def test_the_old_form_of_a_group_normalization() -> None:
    text = """g (float[2,6,S] x) => (float[2,6,S] y) <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}>
        { y = GroupNormalization <num_groups = 3> (x, s, b) }"""
    before = model(text, 20)
    after = converted(before, 21)
    report = verify(before, after, seeds=(0,), checks=("float64",))  # no runtime has that of 18
    assert report.ok, str(report)


@pytest.mark.parametrize("outputs", ["y", "y, float[3] m, float[3] w"])
def test_the_old_switch_of_training(outputs: str) -> None:
    """The number of results became an attribute."""
    text = f"""g (float[N,3,2] x, float[3] m0) => (float[N,3,2] {outputs})
        <float[3] s = {{1, 2, 3}}, float[3] b = {{0, 1, 2}}, float[3] w0 = {{2, 1, 3}}>
        {{ y, m, w, u, t = BatchNormalization <momentum = 0.75> (x, s, b, m0, w0) }}"""
    before = model(text, 13)
    after = converted(before, 18)
    assert [len(n.output) for n in after.graph.node] == [3]
    # onnx.reference computes no statistics in the old form
    report = verify(before, after, checks=("onnxruntime",))
    assert report.ok, str(report)


def test_every_change_is_known() -> None:
    """An operator whose form changed from one opset to the next has an adapter, or is told to be refused."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    refused = set()
    for version in range(OLDEST, NEWEST):
        for name in names:
            if since(name, version) in (0, since(name, version + 1)):
                continue
            if (name, version + 1) not in ADAPTERS and form_changes(name, version, version + 1):
                refused.add((name, version + 1))
    assert refused == set()
    assert all(OLDEST < v <= NEWEST and since(name, v) == v for name, v in ADAPTERS)
    assert all(since(name, v) == v for v, names in _ANOTHER_MEANING.items() for name in names)


@pytest.mark.parametrize("axis", [-1, 2])
def test_a_softmax_along_the_last_axis_stays_one_node(axis: int) -> None:
    text = f"g (float[2,S,3] x) => (float[2,S,3] y) {{ y = Softmax <axis = {axis}> (x) }}"
    assert [n.op_type for n in converted(model(text, 12), 13).graph.node] == ["Softmax"]


@pytest.mark.parametrize(
    ("opset", "text", "reason"),
    [
        (10, 'g (float[1,1,6] x) => (float[1,2,3] y) <float[3] s = {1, 2, 0.5}> { y = Resize <mode = "nearest"> (x, s) }', "enlarge and shrink"),
        (8, "g (float[2,3] x) => (float[2,3] y) <float[3] s = {1, 2, 3}> { y = BatchNormalization <spatial = 0> (x, s, s, s, s) }", "spatial=0"),
        (13, "g (float[2,3] x) => (float[2,3] y, float[3] z) <float[3] s = {1, 2, 3}> { y, m, w, u, t = BatchNormalization (x, s, s, s, s)  z = Neg (t) }", "saved statistics are read"),
        (9, "g (float[2,3] x) => (float[2,3] y, float[2,3] m) { y, m = Dropout (x) }", "dtype of its mask"),
        (12, 'g (float[1,1,6] x) => (float[1,1,3] y) <float[0] r = {}, float[3] s = {1, 1, 0.5}> { y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (x, r, s) }', "tf_half_pixel_for_nn was removed"),
        (12, "g (int32[2] x) => (int32[2] y) { y = Erf (x) }", "does not accept i32"),
    ],
)  # fmt: skip
def test_refused_in_one_line(opset: int, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"of opset {opset} cannot be converted to") as caught:
        convert(load(model(text, opset)), 26)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("opset", [23, 24])
def test_an_attention_that_means_the_same_stays_one_node(opset: int) -> None:
    text = "g (float[2,4,3,4] q, float[2,4,5,4] k) => (float[2,4,3,4] y) { y = Attention <softcap = 2.0> (q, k, k) }"
    made = converted(model(text, opset), 47 - opset)
    assert [n.op_type for n in made.graph.node] == ["Attention"]


LOWERED = {
    "Squeeze": (13, 12, "g (float[2,1,S,1] x) => (float[2,S] y) <int64[2] a = {1, 3}> { y = Squeeze (x, a) }"),
    "ReduceMean": (18, 13, "g (float[2,S,3] x) => (float[2,S,1] y) <int64[1] a = {2}> { y = ReduceMean (x, a) }"),
    "ReduceSum": (13, 11, "g (float[2,S,3] x) => (float[1,1,1] y) { y = ReduceSum (x) }"),
    "Split": (18, 12, "g (float[6,S] x) => (float[3,S] y, float[3,S] z) { y, z = Split <num_outputs = 2> (x) }"),
    "Clip": (13, 10, "g (float[2,S] x) => (float[2,S] y) <float a = {-0.5}, float b = {0.5}> { y = Clip (x, a, b) }"),
    "Pad": (13, 10, "g (float[2,3] x) => (float[3,6] y) <int64[4] p = {1, 2, 0, 1}, float v = {1.5}> { y = Pad (x, p, v) }"),
    "Pad along an axis": (18, 13, "g (float[4,5] x) => (float[4,8] y) <int64[2] p = {1, 2}, int64[1] a = {-1}> { y = Pad (x, p, , a) }"),
    "Pad by what is computed": (18, 13, "g (float[4,S] x) => (float[A,B] y) <int64[1] a = {0}, int64[1] o = {1}> { s = Shape <start = 1> (x) d = Div (s, s) p = Concat <axis = 0> (d, o) y = Pad (x, p, , a) }"),
    "Shape": (15, 13, "g (float[4,S,3] x) => (int64[1] y, int64[2] z) { y = Shape <start = -2, end = -1> (x) z = Shape <end = 2> (x) }"),
    "Attention": (24, 23, "g (float[2,4,3,4] q, float[2,4,5,4] k) => (float[2,4,3,4] y) { y = Attention <softcap = 2.0> (q, k, k) }"),
    "axes that are computed": (18, 11, "g (float[2,S,3] x) => (float[2,S,1] y) <int64[2] a = {1, 2}, int64[1] i = {1}, int64[1] n = {-1}> { b = Gather (a, i) c = Reshape (b, n) y = ReduceMean (x, c) }"),
    "Softmax": (13, 12, "g (float[2,S,3] x) => (float[2,S,3] y) { y = Softmax (x) }"),
    "Reshape": (14, 13, "g (float[2,6] x) => (float[3,4] y) <int64[2] s = {3, 4}> { y = Reshape <allowzero = 1> (x, s) }"),
    "Reshape of the operand's own sizes": (14, 13, "g (float[B,S,4] x) => (float[B,S,2,2] y) <int64[2] i = {0, 1}, int64[2] h = {2, 2}> { s = Shape (x) t = Gather (s, i) u = Concat <axis = 0> (t, h) y = Reshape <allowzero = 1> (x, u) }"),
    "BatchNormalization": (15, 9, "g (float[2,3,4] x) => (float[2,3,4] y) <float[3] s = {1, 2, 3}> { y = BatchNormalization <training_mode = 0> (x, s, s, s, s) }"),
    "Resize": (19, 13, 'g (float[1,2,3,4] x) => (float[1,2,6,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize <mode = "linear", antialias = 0> (x, , s) }'),
    "Split into parts that differ": (18, 12, "g (float[5,S] x) => (float[2,S] y, float[2,S] z, float[1,S] w) { y, z, w = Split <num_outputs = 3> (x) }"),
    "GridSample": (20, 16, 'g (float[1,2,6,6] x, float[1,3,3,2] grid) => (float[1,2,3,3] y, float[1,2,3,3] z) { y = GridSample (x, grid) z = GridSample <mode = "cubic", padding_mode = "border", align_corners = 1> (x, grid) }'),
    "DFT": (20, 17, "g (float[1,8,4,1] x) => (float[1,8,4,2] y, float[1,8,4,2] z) <int64 a = {-3}> { y = DFT (x) z = DFT (x, , a) }"),
    "Resize by default": (13, 11, "g (float[1,2,3,4] x) => (float[1,2,6,8] y, float[1,2,3,2] z) <float[4] s = {1, 1, 2, 2}, int64[4] n = {1, 2, 3, 2}> { y = Resize (x, , s) z = Resize (x, , , n) }"),
    "Resize nearest": (13, 9, 'g (float[1,2,3,4] x) => (float[1,2,6,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , s) }'),
    "Resize to sizes": (19, 9, 'g (float[1,2,3,4] x) => (float[1,2,6,12] y) <int64[4] n = {1, 2, 6, 12}> { y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , , n) }'),
    "Resize to less": (13, 10, 'g (float[1,1,6,8] x) => (float[1,1,3,2] y, float[1,1,3,2] z) <float[4] s = {1, 1, 0.5, 0.25}> { y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "ceil"> (x, , s) z = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , s) }'),
    "axes from the end": (13, 9, "g (float[2,3,4] x) => (float[24] y) { a = Concat <axis = -2> (x, x) b = ReduceMax <axes = [-2], keepdims = 0> (a) c = Concat <axis = -1> (b, b, b) f = Flatten <axis = -2> (c) y = Squeeze (f) }"),
    "attributes that are no axes": (13, 9, 'g (float[1,2,3,4] x) => (float[1,2,3,4] y) { a = LeakyRelu <alpha = -0.5> (x) y = AveragePool <auto_pad = "SAME_UPPER", kernel_shape = [2, 2]> (a) }'),
    "Mod": (28, 13, "g (int64[2,3] x) => (int64[2,3] y) <int64 b = {-3}> { y = Mod (x, b) }"),
    "Mod of floats": (28, 13, "g (float[2,3] x) => (float[2,3] y) <float b = {-0.3}> { y = Mod <fmod = 1> (x, b) }"),
    "BitShift": (28, 11, 'g (uint8[2,3] x) => (uint8[2,3] y) <uint8[3] b = {0, 1, 7}> { y = BitShift <direction = "LEFT"> (x, b) }'),
    "SpaceToDepth": (28, 13, 'g (float[1,1,2,4] x) => (float[1,4,1,2] y) { y = SpaceToDepth <blocksize = 2, mode = "DCR"> (x) }'),
    "Range": (28, 13, "g (float[2] x) => (float[5] y) <float a = {0}, float b = {5}, float c = {1}, int64[1] n = {0}> { s = ReduceSum <keepdims = 0> (x, n) r = Range <stash_type = 1> (a, b, c) y = Add (r, a) }"),
    "Constant": (13, 9, "g (float[2,3] x) => (float[3,2] y, float[2] z, string[2] s) { n = Constant <value_ints = [3, 2]> () a = Constant <value_float = 0.1> ()"
        ' z = Constant <value_floats = [0.1, 2.5]> () s = Constant <value_strings = ["é", ""]> () b = Mul (x, a) y = Reshape (b, n) }'),
    "Loop without a condition": (18, 15, "g (float[3] x, int64 n) => (float[3] y) { y = Loop (n, , x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t) { d = Identity (c) t = Sin (s) }> }"),
    "elementwise": (22, 14, "g (float[2,3] x) => (float[2,3] y) { a = HardSwish (x) b = Sin (a) y = Add (a, b) }"),
}  # fmt: skip


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_several_axes_of_which_one_is_empty(op: str) -> None:
    """The shape is that of the operand: a zero in it copies no other size."""
    before = model(f"g (float[A,B,C] x) => (float[A,B,C] y) {{ y = {op} <axis = 1> (x) }}", 11)
    after = converted(before, 22)
    for shape in ((2, 3, 0), (0, 3, 4), (2, 0, 4), (2, 3, 4)):
        x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        ours, theirs = (run(m, {"x": x})["y"] for m in (after, before))
        assert isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray)
        assert ours.shape == shape and np.allclose(ours, theirs)
    user = model(
        "g (float[3,0] x, float[A,B] z) => (float[M,N] y) { s = Shape (z) y = Reshape (x, s) }", 13
    )
    assert not any(
        a.name == "allowzero" for n in converted(user, 22).graph.node for a in n.attribute
    )


@pytest.mark.parametrize(("opset", "to", "text"), LOWERED.values(), ids=LOWERED)
def test_lowered(opset: int, to: int, text: str) -> None:
    if opset > RUNS:
        pytest.skip(f"onnxruntime {onnxruntime_version()} runs nothing above opset {RUNS}")
    before = model(text, opset)
    after = converted(before, to)
    prove(before, after)
    prove(before, converted(after, opset))


@pytest.mark.slow
def test_the_backend_suite_to_opset_13_and_back(golden: Callable[[str, str], None]) -> None:
    """Each case that is not refused computes the same in both forms; the others are a table by operator."""
    converts: Counter[str] = Counter()
    refused: defaultdict[str, Counter[str]] = defaultdict(Counter)
    failed = []
    with suite_table.any_opset():
        for c in suite_table.right_clamped():
            program = load(clamp_ir(c.model))
            opset = program.opset
            if not 13 < opset <= NEWEST:
                continue
            operators = {node.op_type for node in c.model.graph.node}
            name = operators.pop() if len(operators) == 1 else "several operators"
            try:
                convert(program, 13)
            except InputError as error:
                refused[name][str(error).rsplit("cannot be converted to ", 1)[-1]] += 1
                continue
            converts[name] += 1
            for to in (13, opset):
                convert(program, to)
                if not suite_table.is_right(c, to_proto(program)):
                    failed.append(f"{c.name} at {to}")
    assert not failed and converts.total() > 950
    measured = suite_table.table()
    if (measured["onnx"], measured["onnxruntime"]) == (onnx.__version__, onnxruntime.__version__):
        golden("opset_13_and_back", _table(converts, refused))


def _table(converts: Counter[str], refused: Mapping[str, Counter[str]]) -> str:
    """The number of cases that go to opset 13 and back, and the reasons of the others."""
    whole = sorted(set(converts) - set(refused))
    lines = [f"without refusal: {', '.join(f'{name} {converts[name]}' for name in whole)}"]
    for name in sorted(refused):
        lines.append(f"{name}: converted = {converts[name]}, refused = {refused[name].total()}")
        lines += [f"  {n} to {reason}" for reason, n in sorted(refused[name].items())]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("opset", "to", "text", "reason"),
    [
        (18, 17, "g (int32[2] x) => (int32[2] y) { y = BitwiseNot (x) }", "new at opset 18"),
        (13, 12, "g (float[2,1] x, int64[1] a) => (float[N] y) { y = Squeeze (x, a) }", "known at run time only"),
        (13, 12, "g (float[2,3] x) => (float[2,3] y) { y = Hardmax <axis = 0> (x) }", "along the last axis"),
        (18, 17, "g (float[S,2] x) => (float[A,2] y, float[B,2] z) { y, z = Split <num_outputs = 2> (x) }", "sizes of its parts are not known"),
        (20, 19, "g (float[1,2,3,4,5] x, float[1,2,2,2,3] grid) => (float[1,2,2,2,2] y) { y = GridSample (x, grid) }", "rank 4"),
        (20, 19, "g (float[1,8,4,1] x, int64 a) => (float[1,8,4,2] y) { y = DFT (x, , a) }", "its 'axis' is known at run time only"),
        (11, 10, 'g (float[1,1,4] x) => (float[1,1,8] y) <float[0] r = {}, float[3] s = {1, 1, 2}> { y = Resize (x, r, s) }', "'coordinate_transformation_mode' is half_pixel"),
        (11, 10, 'g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> { y = Resize <mode = "cubic", coordinate_transformation_mode = "asymmetric"> (x, r, s) }', "'mode' is cubic"),
        (11, 10, 'g (float[1,1,4] x) => (float[1,1,8] y) <float[0] r = {}, float[3] s = {1, 1, 2}> { y = Resize <coordinate_transformation_mode = "asymmetric"> (x, r, s) }', "'nearest_mode' is round_prefer_floor"),
        (11, 10, 'g (float[1,1,4] x) => (float[1,1,3] y) <float[0] r = {}, float[0] s = {}, int64[3] n = {1, 1, 3}> { y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, r, s, n) }', "'scales' are not known"),
        (10, 9, 'g (float[1,1,4] x) => (float[1,1,2] y) <float[3] s = {1, 1, 0.5}> { y = Resize <mode = "linear"> (x, s) }', "not known to be 1 or more"),
        (14, 13, "g (float[3,0] x) => (float[0,6] y) <int64[2] s = {0, 6}> { y = Reshape <allowzero = 1> (x, s) }", "size of zero"),
        (14, 13, "g (float[B,S,4] x) => (float[S,B,4] y) <int64[3] i = {1, 0, 2}> { s = Shape (x) t = Gather (s, i) y = Reshape <allowzero = 1> (x, t) }", "size of zero"),
        (22, 21, "g (bfloat16[2] x) => (bfloat16[2] y) { y = Sin (x) }", "does not accept bf16"),
        (11, 10, "g (float[2,3] x, float[3,4] b) => (float[2,4] y) { y = Gemm (x, b) }", "it needs 'C'"),
        (11, 10, "g (float[2,3] x, int64[N] s, int64[2] i) => (float[A,B] y) { r = Reshape(x, s) y = Gather <axis = -1> (r, i) }", "counted from the end"),
        (28, 27, "g (float[2] x) => (float[2] y) <float b = {0.3}> { y = Mod (x, b) }", "not known to be integers"),
        (28, 27, 'g (uint8[2] x) => (uint8[2] y) <uint8 b = {8}> { y = BitShift <direction = "LEFT"> (x, b) }', "fewer bits than there are"),
        (28, 27, 'g (uint8[2] x, uint8[2] b) => (uint8[2] y) { y = BitShift <direction = "RIGHT"> (x, b) }', "fewer bits than there are"),
        (28, 27, 'g (int8[2] x) => (int8[2] y) <int8 b = {1}> { y = BitShift <direction = "LEFT"> (x, b) }', "does not accept i8"),
        (18, 17, 'g (float[1,1,4] x) => (float[1,1,2] y) <float[3] s = {1, 1, 0.5}> { y = Resize <mode = "linear", antialias = 1> (x, , s) }', "came with opset 18"),
        (18, 17, "g (float[4,4] x, int64[1] a) => (float[M,N] y) <int64[2] p = {1, 1}> { y = Pad (x, p, , a) }", "its 'axes' or its rank are not known"),
    ],
)  # fmt: skip
def test_not_lowered(opset: int, to: int, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"of opset {opset} cannot be converted to {to}") as caught:
        convert(load(model(text, opset)), to)
    assert reason in str(caught.value)


FUNCTIONS = """<ir_version: 8, opset_import: ["" : 12, "my" : 1]>
m (float[4,3] x, bool c) => (float[4,1] y) {
    y = If (c) <then_branch = t () => (float[4,1] p) { k = my.h (x) p = Identity (k) },
        else_branch = e () => (float[4,1] q) { q = ReduceSum <axes = [1]> (x) }> }
<domain: "my", opset_import: ["" : 12]> f <keep: int = 1> (v) => (w) { s = Softmax <axis = 1> (v) w = ReduceSum <axes = [1], keepdims: int = @keep> (s) }
<domain: "my", opset_import: ["" : 11, "my" : 1]> h (v) => (w) { l = Clip (v) k = Tanh (l) w = my.f <keep = 1> (k) }"""


@pytest.mark.parametrize("to", [13, 18, 23, 26, RUNS])
def test_functions_and_nested_graphs(to: int) -> None:
    """onnx.version_converter drops functions."""
    before = onnx.parser.parse_model(FUNCTIONS)
    after = converted(before, to)
    assert [f.name for f in after.functions] == ["f", "h"]
    assert {o.version for f in after.functions for o in f.opset_import if not o.domain} == {to}
    prove(before, after)


def test_an_attribute_that_calls_give_stays_one() -> None:
    text = FUNCTIONS.replace("f <keep: int = 1>", "f <at>").replace(
        "axes = [1], keepdims: int = @keep", "axes: ints = @at"
    )
    with pytest.raises(InputError, match="'axes' is given by calls: inline the function first"):
        convert(load(onnx.parser.parse_model(text.replace("<keep = 1>", "<at = [1]>"))), 13)


def test_what_needs_no_change_is_as_it_was(tmp_path: Path) -> None:
    """Names, metadata, doc strings, external data: field for field."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> m (float[2,300] x) => (float[2,300] y) { p = MatMul (x, w) y = Tanh (p) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((300, 300), np.float32), "w"))
    model.graph.doc_string, model.producer_name = "why", "somebody"
    model.graph.node[0].name = "first"
    model.graph.node[0].metadata_props.add(key="k", value="v")
    model.metadata_props.add(key="alphabet", value="abc")
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    program = load(tmp_path / "m.onnx")
    assert not convert(program, 23).rewritten
    (tmp_path / "out").mkdir()
    save(program, tmp_path / "out" / "m.onnx")
    before, after = onnx.load(tmp_path / "m.onnx"), onnx.load(tmp_path / "out" / "m.onnx")
    assert after.opset_import[0].version == 23 and after.ir_version == 11
    after.opset_import[0].version, after.ir_version = 18, 10
    assert after == before


def test_a_changed_node_keeps_name_and_metadata() -> None:
    before = model("g (float[2,3] x) => (float[2,1] y) { y = ReduceSum <axes = [1]> (x) }", 11)
    before.graph.node[0].name = "sum"
    before.graph.node[0].metadata_props.add(key="k", value="v")
    after = converted(before, 21)
    assert after.graph.node[0].name == "sum" and after.graph.node[0].output == ["y"]
    assert {p.key: p.value for p in after.graph.node[0].metadata_props}["k"] == "v"


def test_weights_below_ir_4_are_no_inputs() -> None:
    before = model("g (float[2,3] x, float[3] w) => (float[2,3] y) { y = Add (x, w) }", 8)
    before.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    before.ir_version = 3
    after = converted(before, 13)
    assert [v.name for v in after.graph.input] == ["x"] and after.ir_version == 8


@pytest.mark.parametrize(("opset", "to"), [(6, 13), (13, 6), (13, 29), (13, 0)])
def test_opsets_that_are_too_old_or_too_new(opset: int, to: int) -> None:
    before = model("g (float[2] x) => (float[2] y) { y = Tanh (x) }", opset)
    with pytest.raises(InputError, match=r"is not between 7 and 28|is below 7"):
        convert(load(before), to)
