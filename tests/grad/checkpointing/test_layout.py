"""The nodes that onnxruntime runs for convolutions, and the operators that work in place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxgrad import gradient
from onnxgrad.grad.checkpointing import memory
from onnxgrad.grad.checkpointing.layout import Blocked, bytes_of_value, executed, shape_of_value
from onnxgrad.ir.load import load
from tests.grad.numeric import normal, scalar_model

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g (float[2,16,8,8] x) => (float[2,16,8,8] y)'
GRAPHS = {
    "an activation joins": "c = Conv (x, w) r = Relu (c) y = Conv (r, v)",
    "an activation whose operand is read twice stays": "c = Conv (x, w) r = Relu (c) s = Conv (r, v) y = Add (s, c)",
    "a sum joins, then an activation": "c = Conv (x, w) r = Relu (c) s = Conv (r, v) a = Add (s, r) y = Relu (a)",
    "a plain reader": "c = Conv (x, w) t = Sin (c) y = Mul (t, c)",
    "a factor joins": "h = Constant <value_float = 0.5> () c = Conv (x, w) m = Mul (c, h) s = Sin (m) y = Mul (s, m)",
    "a factor in front stays": "h = Constant <value_float = 0.5> () c = Conv (x, w) m = Mul (h, c) y = Conv (m, v)",
    "a factor of what is read twice stays": "h = Constant <value_float = 0.5> () c = Conv (x, w) m = Mul (c, h) s = Sin (c) y = Mul (s, m)",
    "a factor behind an activation stays": "h = Constant <value_float = 0.5> () c = Conv (x, w) r = Relu (c) m = Mul (r, h) y = Conv (m, v)",
    "a pool": "c = Conv (x, w) p = MaxPool <kernel_shape = [1, 1]> (c) y = Conv (p, v)",
    "weights that are computed": """z = Sin (x) m = ReduceMean (z) k = Mul (w, m) c = Conv (x, k)
        s = Sin (c) y = Conv (s, v)""",
}


def planned(model: onnx.ModelProto) -> Counter[str]:
    block = load(model).main
    constants = {v for v in block.vars() if v.is_constant}
    nodes = executed([b for b in block.bindings if b.inputs], constants, set())
    return Counter(node.op.partition(",")[0] for node in nodes)


@pytest.mark.parametrize("nodes", GRAPHS.values(), ids=GRAPHS)
def test_the_nodes_are_those_that_onnxruntime_runs(nodes: str, tmp_path: Path) -> None:
    weights = {n: normal(16, 16, 1, 1, seed=i) / 4 for i, n in enumerate("wv")}
    model = scalar_model(f"{HEAD} {{ {nodes} }}", **weights)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = onnx.load(tmp_path / "optimized.onnx").graph.node
    if not any("nchwc" in n.domain for n in found):
        pytest.skip("this processor has no blocked layout")
    copies = {"ReorderInput": "Reorder", "ReorderOutput": "Reorder"}
    ran = Counter(copies.get(n.op_type, n.op_type) for n in found if n.op_type != "Constant")
    assert planned(model) == ran


def test_values_in_the_blocked_layout_fill_blocks() -> None:
    model = scalar_model(
        f"{HEAD.replace('float[2,16,8,8] y', 'float[2,20,8,8] y')} {{ y = Conv (x, w) }}",
        w=np.ones((20, 16, 1, 1), np.float32),
    )
    y = load(model).main.outputs[0]
    assert bytes_of_value(y) == 4 * 2 * 20 * 64
    assert bytes_of_value(Blocked(y)) == 4 * 2 * 32 * 64
    assert (shape_of_value(y), shape_of_value(Blocked(y))) == ((2, 20, 8, 8), (2, 32, 8, 8))


@pytest.mark.parametrize("channels", [16, 20, 24])
def test_every_buffer_holds_all_values_that_share_it(channels: int) -> None:
    """Values of both layouts shared buffers of the smaller size: a budget was off by 1.4."""
    many = f"float[2,{channels},8,8]"
    model = scalar_model(
        f"""{HEAD.replace("float[2,16,8,8] x", f"{many} x").replace("float[2,16,8,8] y", "float y")}
        {{ a = Conv (x, w) b = Tanh (a) c = Conv (b, v) d = Mul (c, x) e = Conv (d, w) f = Tanh (e)
        q = Mul (f, f) y = ReduceMean <keepdims = 0> (q) }}""",
        **{n: np.ones((channels, channels, 1, 1), np.float32) for n in "wv"},
    )
    plan = memory._Plan(load(gradient(model, None, "y")).main)
    plan.steps()
    held = [(v, number) for v, number in plan._buffers.items() if number is not None]
    assert len({number for _, number in held}) < len(held)
    assert all(bytes_of_value(v) <= plan._sizes[number] for v, number in held)
