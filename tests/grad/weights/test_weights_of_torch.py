"""What torch.onnx writes of a module with every kind of parameter, against its named_parameters: -m torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxgrad
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


# each stands between two Linears; F, nn and torch are in scope
FUNCTIONS = {
    **{
        name: f"nn.{name}({arguments})"
        for name, arguments in {
            "Softplus": "beta=2.0", "Mish": "", "ELU": "0.7", "LogSigmoid": "", "CELU": "0.5",
            "Hardtanh": "-0.5, 0.5", "Threshold": "0.1, 0.2", "Softshrink": "0.3", "Hardshrink": "0.3",
            "Tanhshrink": "", "Softsign": "", "GELU": "'tanh'", "SELU": "", "SiLU": "", "Hardswish": "",
            "Hardsigmoid": "", "ReLU6": "", "LeakyReLU": "0.2", "PReLU": "4", "LayerNorm": "4", "RMSNorm": "4",
            "LogSoftmax": "1", "Softmin": "1", "AlphaDropout": "0.2", "GroupNorm": "2, 4", "Dropout": "0.3",
        }.items()
    },
    **{
        name: f"lambda h: {text}"
        for name, text in {
            "group_norm": "F.group_norm(h, 2)", "layer_norm": "F.layer_norm(h, (4,))",
            "rms_norm": "F.rms_norm(h, (4,))", "normalize": "F.normalize(h)",
            "instance_norm": "F.instance_norm(h[:, :, None].expand(-1, -1, 3) * torch.tensor([1., 2, 3]))[:, :, 1]",
            "standardize": "(h - h.mean(-1, True)) / (h.std(-1, keepdim=True) + 0.1)",
            "tensor": "h * torch.tensor([1., 2, 3, 5])", "added": "h + torch.tensor([0.31, -0.74, 0.12, 0.58])",
            "ones": "h * torch.ones(4) + torch.zeros(4)", "full": "h * torch.full((4,), 0.37)",
            "arange": "h * torch.arange(4)", "linspace": "h * torch.linspace(0.1, 0.9, 4)",
            "hann_window": "h * (torch.hann_window(4) + 0.1)", "sinusoid": "h + torch.sin(torch.arange(4) * 0.3)",
            "eye": "h @ torch.eye(4)", "matrix": "h @ torch.tensor([[0.3, 0.1, 0.7, 0.2]] * 4).cumsum(0)",
            "einsum": "torch.einsum('ij,jk->ik', h, torch.tril(torch.ones(4, 4)))",
            "blur": "F.conv1d(h[:, None], torch.tensor([[[0.27, 0.46, 0.27]]]), padding=1)[:, 0]",
            "temperature": "F.softmax(h / 0.73, -1)", "clamp": "h.clamp(-0.3, 0.3)",
            "addcmul": "torch.addcmul(h, h, h, value=0.5)", "lerp": "torch.lerp(h, h * h, 0.3)",
            "where": "torch.where(h > 0, h, torch.tensor(0.13))", "pow": "(h * h + 0.1).pow(1.7)",
            "logsumexp": "h - h.logsumexp(-1, keepdim=True)", "glu": "F.glu(torch.cat([h, h], -1))",
            "pad": "F.pad(h, (1, 1), value=0.5)[:, 1:5]", "cumsum": "h.cumsum(-1)", "scaled_tanh": "1.7159 * torch.tanh(0.6667 * h)",
            "mse": "F.mse_loss(h, torch.full_like(h, 0.2), reduction='none')",
            "soft": "F.softplus(h, beta=0.5) * torch.tanh(h * 0.7)",
            "attention": "F.scaled_dot_product_attention(*[h[:, None, None]] * 3)[:, 0, 0]",
            "interpolate": "F.interpolate(h[:, None], scale_factor=2)[:, 0, ::2]",
            "hidden": "h + torch.tensor([0., 0, -1e9, 0])[None].softmax(-1)",
        }.items()
    },
    **{
        f"{name}_free": text
        for name, text in {
            "GroupNorm": "nn.GroupNorm(2, 4, affine=False)", "BatchNorm": "nn.BatchNorm1d(4, affine=False)",
            "LayerNorm": "nn.LayerNorm(4, elementwise_affine=False)",
        }.items()
    },
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"dynamo": True, "optimize": False},
    "optimised": {"dynamo": True, "optimize": True},
    "scripted": {"dynamo": False, "opset_version": 17},
}
# torch's older exporter has none of these
_NOT_SCRIPTED = {"RMSNorm", "rms_norm", "Threshold"}
# one of each kind runs without -m slow
_QUICK = {
    ("Softplus", "scripted"),
    ("group_norm", "optimised"),
    ("GroupNorm", "optimised"),
    ("tensor", "scripted"),
}


def exported(path: Path, net: Any, x: Any, form: str) -> onnx.ModelProto:
    names = {"input_names": ["x"], "output_names": ["logits"]}
    torch.onnx.export(net.eval(), (x,), str(path), **names, **FORMS[form])
    return onnx.load(path)


def between(function: str) -> Any:
    nn = torch.nn
    made = eval(FUNCTIONS[function], {"nn": nn, "F": nn.functional, "torch": torch})

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.f, self.b = nn.Linear(3, 4), made, nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.b(self.f(self.a(x)))

    torch.manual_seed(0)
    return Between()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "form"),
    [
        pytest.param(function, form, marks=() if (function, form) in _QUICK else pytest.mark.slow)
        for function in FUNCTIONS
        for form in FORMS
        if form != "scripted" or function not in _NOT_SCRIPTED
    ],
)
def test_no_constant_of_a_function_is_a_weight(tmp_path: Path, function: str, form: str) -> None:
    """A step and a gradient by "params" have the network's parameters, and no note doubts one."""
    net = between(function)
    model = exported(tmp_path / "m.onnx", net, torch.randn(5, 3), form)
    found, expected = weights(model), {name: p.numel() for name, p in net.named_parameters()}
    kept = {t.name for t in model.graph.initializer}
    # the optimiser names a reshaped parameter, such as the scale of a GroupNorm, as a result
    assert (
        found == set(expected)
        if form != "optimised"
        else found & kept & {*expected} == {*expected} & kept
    )
    gradient = onnxgrad.gradient(model, "params", "logits", adjoint="input")
    assert len(gradient.graph.output) == 1 + len(found)
    step = onnxgrad.training_step(model, "cross_entropy")
    trained = onnxgrad.Trainer(step).parameters
    assert sorted(v.size for v in trained.values()) == sorted(expected.values())
    assert not any("torch.tensor" in note for note in step.notes)


def stacked(kind: str) -> Any:
    """A language model of three blocks: `copies` of one, `one` block under three numbers, one that
    is called three times (`albert`), and with a `tied` head.
    """
    nn = torch.nn
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    many = {"one": [block] * 3, "albert": [block]}
    copies = [copy.deepcopy(block) for _ in range(3)]

    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layers = nn.Embedding(20, 8), nn.ModuleList(many.get(kind, copies))
            self.head = nn.Linear(8, 20, bias=False)
            if kind == "tied":
                self.head.weight = self.table.weight

        def forward(self, x: Any) -> Any:
            h = self.table(x)
            for layer in [*self.layers] * (3 if kind == "albert" else 1):
                h = h + layer(h)
            return self.head(h)

    return Stacked()


def encoder() -> Any:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(20, 8), layers, nn.Linear(8, 20))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["optimised", pytest.param("scripted", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    [
        "copies",
        "one",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("albert", "tied", "encoder")),
    ],
)
def test_layers_that_start_equal(tmp_path: Path, kind: str, form: str) -> None:
    """Copies train by themselves, one layer and a tied head as one parameter; the older exporter
    drops the names of matrices, which a note offers to untie.
    """
    torch.manual_seed(0)
    net = encoder() if kind == "encoder" else stacked(kind)
    model = exported(tmp_path / "m.onnx", net, torch.randint(0, 20, (2, 7)), form)

    def trained(**options: Any) -> tuple[int, str]:
        step = onnxgrad.training_step(model, "sequence_cross_entropy{shift=0}", **options)
        values = onnxgrad.Trainer(step).parameters.values()
        return sum(v.size for v in values), "\n".join(step.notes)

    expected = sum(p.numel() for p in net.parameters())
    found, notes = trained()
    if form == "scripted" and kind not in ("one", "albert"):
        assert found < expected and "several layers read 'onnx::MatMul_" in notes
        found, notes = trained(untie=["*"])
    assert found == expected
    assert "several layers" not in notes
