"""onnxgrad/report/costs.py: sums over a model, what is unknown, published figures, and PyTorch's count."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxgrad import InputError, inspect
from onnxgrad.jobs.inspection.costs import OperatorCost
from tests.helpers import MODELS_DIR, parse


class Graph:
    """A model whose weights are inputs, so that it is small."""

    def __init__(self, x: list[int]) -> None:
        self.nodes: list[Any] = []
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]

    def __call__(self, op: str, *operands: str | list[int], **attributes: Any) -> str:
        names = []
        for given in operands:
            if isinstance(given, list):
                name = f"w{len(self.inputs)}"
                self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, given))
                given = name
            names.append(given)
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [out], **attributes))
        return out

    def model(self, out: str) -> ModelProto:
        result = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", self.inputs, [result])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def resnet18() -> ModelProto:
    g = Graph([1, 3, 224, 224])

    def conv(x: str, m: int, c: int, k: int, stride: int) -> str:
        return g("Conv", x, [m, c, k, k], strides=[stride, stride], pads=[k // 2] * 4)

    x = g("Relu", conv("x", 64, 3, 7, 2))
    x = g("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for i, wide in enumerate((64, 128, 256, 512)):
        for stride in (1 if i == 0 else 2, 1):
            y = g("Relu", conv(x, wide, width, 3, stride))
            y = conv(y, wide, wide, 3, 1)
            short = x if (width, stride) == (wide, 1) else conv(x, wide, width, 1, stride)
            x, width = g("Relu", g("Add", y, short)), wide
    return g.model(g("Gemm", g("Flatten", g("GlobalAveragePool", x)), [512, 1000], [1000]))


def bert_base(length: int) -> ModelProto:
    g = Graph([1, length, 768])
    x = "x"
    for _ in range(12):
        q, k, v = (g("MatMul", x, [768, 768]) for _ in range(3))
        a = g("Attention", q, k, v, q_num_heads=12, kv_num_heads=12)
        x = g("LayerNormalization", g("Add", g("MatMul", a, [768, 768]), x), [768], [768])
        h = g("Gelu", g("Add", g("MatMul", x, [768, 3072]), [3072]))
        x = g("LayerNormalization", g("Add", g("MatMul", h, [3072, 768]), x), [768], [768])
    model = g.model(x)
    model.opset_import[0].version = 23
    return model


def test_published_figures() -> None:
    """ResNet-18: 1.814 GMACs (torchvision). BERT-base, 128 tokens: 22.5 GFLOPs (MobileBERT, 2020)."""
    products = inspect(resnet18()).costs.operators
    assert (products["Conv"].flops + products["Gemm"].flops) / 2e9 == pytest.approx(
        1.814, abs=0.001
    )
    assert inspect(bert_base(128)).costs.flops / 1e9 == pytest.approx(22.5, rel=0.01)


def test_sums_by_operator() -> None:
    text = """g (float[N,4] x) => (float[N,3] y)
    <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[2] unused = {1,2}> {
        p = MatMul (x, w)  q = Tanh (p)  y = Add (p, q) }"""
    found = inspect(parse(text), dims={"N": 2}).costs
    assert found.operators["MatMul"] == OperatorCost(2 * 2 * 4 * 3, 24)
    assert found.flops == 48 + 6 + 6 and found.unknown == 0 and not found.open
    assert [w.name for w in found.weights] == ["w", "unused"] and found.weight_bytes == 56
    assert [(v.name, v.bytes) for v in found.values] == [("p", 24), ("q", 24), ("y", 24)]
    assert found.peak == 32 + 3 * 24  # the caller holds x


def test_what_is_unknown_is_said() -> None:
    model = parse("g (float[N,4] x) => (float[N,4] y, float[4] z) { y = Tanh (x)  z = Exp (c) } ")
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.FLOAT, [4], [1, 2, 3, 4]))
    summary = inspect(model)
    found = summary.costs
    assert found.open == ["N"] and found.peak is None and found.unknown_values == 1
    assert found.operators["Tanh"] == OperatorCost(unknown_flops=1, unknown_bytes=1)
    text = str(summary)
    assert "at least 4, unknown for 1 of 2 nodes (sizes open: N)" in text
    assert "values unknown (N open: dims={'N': size} counts them)" in text
    assert "and 1 of unknown size" in text
    assert found.to_dict()["nodes_of_unknown_flops"] == 1


def test_a_symbol_that_there_is_not() -> None:
    with pytest.raises(InputError, match=r"dims: \{'M': 1\}: no input has a dimension 'M'"):
        inspect(parse("g (float[N] x) => (float[N] y) { y = Tanh (x) }"), dims={"M": 1})


def test_an_axis_without_a_name() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Tanh (x) }")
    for v in (*model.graph.input, *model.graph.output):
        v.type.tensor_type.shape.dim[0].ClearField("dim_param")
    assert inspect(model, dims={"x.0": 5}).costs.flops == 5


def test_graphs_inside_run_as_often_as_they_do() -> None:
    text = """g (float[6,2] x, bool c, float[2] s, int64 n) => (float[2] y, float[2] z, float[2] u) {
        e, r = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] i) => (float[2] o, float[2] p) {
            o = Add (a, i)  p = Identity (o) }> (s, x)
        y = If (c) <then_branch = t () => (float[2] a1) { a2 = Tanh (s)  a1 = Tanh (a2) },
                    else_branch = f () => (float[2] b1) { b1 = Exp (s) }>
        go = Constant <value = bool {1}> ()
        z = Loop (n, go, s) <body = l (int64 i1, bool k, float[2] v) => (bool k2, float[2] v2) {
            k2 = Identity (k)  v2 = Sin (v) }>
        u = Identity (e) }"""
    found = inspect(parse(text)).costs
    assert found.operators["Add"].flops == 6 * 2
    assert found.operators["Tanh"].flops == 4 and "Exp" not in found.operators
    assert found.operators["Sin"] == OperatorCost(0, 8, unknown_flops=1)  # n is the caller's


def test_functions_cost_what_their_bodies_do() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (float[2] x) => (float[2] y) { t = my.f (x)  y = my.f (t) }
        <domain: "my", opset_import: ["" : 20]> f (a) => (b) { t = Tanh (a)  b = Mul (t, t) }""")
    assert inspect(model).costs.flops == 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(MODELS_DIR.glob("*.onnx")), ids=lambda p: p.stem)
def test_real_models_have_formulas(path: Any) -> None:
    assert inspect(path).costs.without_formula == []


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_against_the_count_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch may be missing
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, bias=False)
            self.depth = torch.nn.Conv2d(8, 8, 3, groups=8, bias=False)
            self.up = torch.nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False)
            self.head = torch.nn.Linear(4 * 26 * 26, 10, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.up(torch.relu(self.depth(self.conv(x))))
            return self.head(y.flatten(1))

    net, x = Net().eval(), torch.rand(2, 3, 32, 32)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(x)
    exported = torch.onnx.export(net, (x,), dynamo=True, verbose=False)
    found = inspect(exported).costs.operators
    ours = sum(found[op].flops for op in ("Conv", "ConvTranspose", "MatMul", "Gemm") if op in found)
    assert ours == counter.get_total_flops()
