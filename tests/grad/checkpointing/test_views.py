"""Values of recomputed segments have sizes that onnxruntime does not know before the run, so that it plans no buffers for them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal, scalar_model

LAYERS = " ".join(
    f"p{i} = MatMul (h{i}, w) r{i} = Reshape (p{i}, flat) t{i} = Tanh (r{i}) s{i} = Reshape (t{i}, square) h{i + 1} = Add (s{i}, h{i})"
    for i in range(6)
)
MODEL = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[64,64] h0) => (float loss) {{
    flat = Constant <value_ints = [4096]> () square = Constant <value_ints = [64, 64]> ()
    {LAYERS} q = Mul (h6, h6) loss = ReduceSum <keepdims = 0> (q) }}"""


def known(graph: onnx.ModelProto) -> dict[str, bool]:
    """Whether onnx infers all sizes of a value, for the values that are computed again."""
    found = onnx.shape_inference.infer_shapes(graph, data_prop=True).graph.value_info
    return {
        v.name: all(d.HasField("dim_value") for d in v.type.tensor_type.shape.dim)
        for v in found
        if v.name.startswith("again_")
    }


@pytest.mark.parametrize("declared", [False, True])
def test_sizes_behind_a_barrier_are_unknown_until_the_run(declared: bool) -> None:
    model = scalar_model(MODEL, w=normal(64, 64) / 8)
    if declared:
        model = onnx.shape_inference.infer_shapes(model)
    graph = gradient(model, ["h0", "w"], checkpoint=["h2", "h4", "h6"])
    assert len(known(graph)) > 10 and not any(known(graph).values())
    plain, marked = (
        run(g, {"h0": normal(64, 64, seed=1)}) for g in (gradient(model, ["h0", "w"]), graph)
    )
    for name in ("h0_grad", "w_grad"):
        np.testing.assert_allclose(marked[name], plain[name], rtol=1e-4, atol=1e-5)
    # kernels prefer constant weights: what depends on weights only has no view
    made = {o: n for n in graph.graph.node for o in n.output}
    viewed = [n.input[0] for n in graph.graph.node if n.op_type == "Reshape"]
    assert not any(
        made[v].op_type == "Transpose" and made[v].input == ["w"] for v in viewed if v in made
    )


def test_optimising_keeps_the_sizes_unknown() -> None:
    graph = gradient(
        scalar_model(MODEL, w=normal(64, 64) / 8), ["h0", "w"], checkpoint=["h2", "h4", "h6"]
    )
    better = onnxgrad.optimize(graph, verify=False)
    assert len(known(better)) > 5 and not any(known(better).values())
