"""What torch.onnx writes of a module with every kind of parameter, against its named_parameters: -m torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgrad.grad.weights.sharing import find_merged
from onnxgrad.ir.load import load_own
from tests.grad.weights.test_weights import weights

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def module() -> Any:
    """LayerScale, ReZero, PRelu, GroupNorm, a temperature, a learned query, positions that begin as zeros, weight
    normalisation, a learned initial state, one-column products, GeM pooling; and as buffers sines, a shift, statistics.
    """
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.act, self.norm, self.gn = (
                nn.Linear(6, 6),
                nn.PReLU(),
                nn.LayerNorm(6),
                nn.GroupNorm(2, 6),
            )
            self.gamma, self.rezero = (
                nn.Parameter(1e-5 * torch.ones(6)),
                nn.Parameter(torch.zeros(1)),
            )
            self.register_buffer("shift", torch.randn(6))

        def forward(self, x: Any) -> Any:
            x = x + self.gamma * self.act(self.lin(self.norm(x)))
            x = self.gn(x.transpose(1, 2)).transpose(1, 2)
            return x + self.rezero * torch.tanh(x + self.shift)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tau, self.logit_scale = (
                nn.Parameter(torch.tensor(1.5)),
                nn.Parameter(torch.tensor(2.6593)),
            )
            self.pos, self.query = (
                nn.Parameter(torch.zeros(1, 5, 6)),
                nn.Parameter(torch.randn(1, 2, 6)),
            )
            self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(6, 1)
            self.p, self.shift = nn.Parameter(3 * torch.ones(1)), nn.Parameter(torch.zeros(6))
            self.attn = nn.MultiheadAttention(6, 2, batch_first=True)
            self.wn = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
            self.h0, self.gru = nn.Parameter(torch.randn(1, 1, 6)), nn.GRU(6, 6, batch_first=True)
            self.conv, self.bn = nn.Conv1d(5, 1, 1), nn.BatchNorm1d(5)
            angles = torch.arange(5)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.03, 0.2, 0.7])
            self.register_buffer("pe", torch.sin(angles))

        def forward(self, x: Any) -> Any:
            x = self.bn(x) + self.pos + self.pe
            for block in self.blocks:
                x = block(x)
            x = self.wn(x) * torch.exp(self.logit_scale) / self.tau + self.shift
            x = torch.cat([self.query.expand(x.shape[0], -1, -1), x], 1)
            a, _ = self.attn(x, x, x, attn_mask=torch.full((7, 7), float("-inf")).triu(1))
            g, _ = self.gru(a, self.h0.expand(-1, x.shape[0], -1).contiguous())
            pooled = torch.clamp(self.head(g), min=1e-6).pow(self.p).mean(1).pow(1 / self.p)
            return (pooled + self.conv(g[:, :5]).sum()).sum()

    torch.manual_seed(0)
    whole = Whole().eval()
    for name, p in whole.named_parameters():  # two parameters of equal values are one initializer
        if p.std(correction=0) > 0 or name.endswith((".weight", ".bias")):
            p.data += 0.1 * torch.randn_like(p)
    whole.blocks[1].gamma.data *= 2
    whole.blocks[1].rezero.data += 0.3
    return whole


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options", [{"dynamo": True, "optimize": False}, {"dynamo": True}, {"dynamo": False}]
)
def test_named_parameters(tmp_path: Path, options: dict[str, Any]) -> None:
    """Unoptimised, exactly those; where the exporter folds, each that has kept its name, and no buffer."""
    whole = module()
    target = tmp_path / "m.onnx"
    version = {} if options["dynamo"] else {"opset_version": 17}
    external = {"external_data": False} if options["dynamo"] else {}
    torch.onnx.export(whole, (torch.randn(2, 5, 6),), str(target), **options, **version, **external)
    model = onnx.load(target)
    expected = {name for name, _ in whole.named_parameters()}
    kept = expected & {t.name for t in model.graph.initializer}
    found = weights(model)
    assert found & expected == kept
    buffers = {name for name, _ in whole.named_buffers()}
    if options["dynamo"]:  # TorchScript does not say that a shift is a buffer
        assert not found & buffers
    if not options.get("optimize", True):
        assert found == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimize", [False, True])
def test_equal_layers_that_the_exporter_merged_are_named(tmp_path: Path, optimize: bool) -> None:
    """The file has one of two norms that start equal and read the same value, as in GPT-NeoX."""
    nn = torch.nn

    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(6), nn.LayerNorm(6)
            self.attn, self.mlp = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 6)
            self.place = nn.Embedding(5, 6)

        def forward(self, x: Any) -> Any:
            x = x + self.place(torch.arange(5))
            q = self.norm1(x)
            return x + self.attn(q, q, q)[0] + self.mlp(self.norm2(x))

    path = tmp_path / "m.onnx"
    torch.onnx.export(
        Parallel().eval(), (torch.randn(2, 5, 6),), path, dynamo=True, optimize=optimize
    )
    lost = ("norm2.weight", "norm2.bias") if optimize else ()
    assert find_merged(load_own(path)).lost == lost


FUNCTIONS = {
    name: f"nn.{name}({arguments})"
    for name, arguments in {
        "Softplus": "beta=2.0", "Mish": "", "ELU": "0.7", "LogSigmoid": "", "CELU": "0.5", "Hardtanh": "-0.5, 0.5",
        "Threshold": "0.1, 0.2", "Softshrink": "0.3", "Hardshrink": "0.3", "Tanhshrink": "", "Softsign": "",
        "GELU": "'tanh'", "SELU": "", "SiLU": "", "Hardswish": "", "Hardsigmoid": "", "ReLU6": "", "LeakyReLU": "0.2",
        "PReLU": "", "LayerNorm": "4", "RMSNorm": "4", "LogSoftmax": "1", "Softmin": "1", "AlphaDropout": "0.2",
    }.items()
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"dynamo": True, "optimize": False},
    "optimised": {"dynamo": True, "optimize": True},
    "scripted": {"dynamo": False, "opset_version": 17},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_constant_of_a_function_is_a_weight(tmp_path: Path, function: str, form: str) -> None:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(3, 4), eval(FUNCTIONS[function], {"nn": nn}), nn.Linear(4, 2))
    path = tmp_path / "m.onnx"
    try:
        torch.onnx.export(net.eval(), (torch.randn(5, 3),), str(path), **FORMS[form])
    except RuntimeError as error:  # the errors of the exporter
        pytest.skip(f"torch does not export it: {str(error)[:80]}")
    found, expected = weights(onnx.load(path)), {name for name, _ in net.named_parameters()}
    if form == "optimised":  # a reshaped parameter, such as PReLU's, has a name of the exporter
        kept = {t.name for t in onnx.load(path).graph.initializer}
        assert found & expected == expected & kept and len(found) == len(expected)
    else:
        assert found == expected
