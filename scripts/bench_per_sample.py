"""Per-sample gradients against PyTorch's: `python scripts/bench_per_sample.py [--write]`.

Fifteen networks with their loss, exported by both of PyTorch's exporters in turn with a dynamic
batch. `gradient(..., "params", per_sample=True)` at a batch of 5 is compared with
`torch.func.vmap(torch.func.grad(...))`: the worst difference relative to the largest element of
each gradient, and the CPU time relative to PyTorch's, one thread. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load_own  # noqa: E402
from onnxgrad.transform.per_sample import map_samples, of_size, samples_of  # noqa: E402
from scripts.records import write_record  # noqa: E402
from scripts.sessions import session  # noqa: E402

BATCH = 5


class Loss(nn.Module):
    """A network with its loss, which is a scalar."""

    def __init__(self, body: nn.Module, loss: Callable[..., Any], *sizes: int) -> None:
        super().__init__()
        self.body, self.loss, self.sizes = body, loss, sizes

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.body(x), target)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = kind(6, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 4), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out(functional.scaled_dot_product_attention(q, k, v).mean(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.end = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = functional.silu(self.down(x))
        b = functional.silu(self.mid(functional.avg_pool2d(a, 2)))
        return self.end(torch.cat([a, self.up(b)], 1)).mean((2, 3))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.first, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.first(x)))
        x = functional.relu(x + self.b(functional.relu(self.a(x))))
        return self.head(x.mean((2, 3)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.rest = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.table(x.abs().mul(7).long().clamp(0, 10)).mean(1))


def networks() -> Iterator[tuple[str, Loss]]:
    """Returns each network with the sizes of one sample of x, and a loss of 4 numbers or
    classes.
    """
    cross, square = functional.cross_entropy, functional.mse_loss
    flat, pool = nn.Flatten(), nn.AdaptiveAvgPool2d(1)

    def conv(*layers: nn.Module, out: int = 8) -> nn.Module:
        return nn.Sequential(*layers, nn.Tanh(), pool, flat, nn.Linear(out, 4))

    yield "linear", Loss(nn.Linear(6, 4), square, 6)
    yield "mlp", Loss(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), cross, 6)
    norm = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    yield "mlp with LayerNorm", Loss(norm, cross, 6)
    pooled = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), flat,
        nn.Linear(32, 4),
    )  # fmt: skip
    yield "cnn with MaxPool", Loss(pooled, cross, 2, 10, 10)
    yield "strided, dilated, grouped", Loss(
        conv(nn.Conv2d(2, 4, 3, 2, 1), nn.ELU(), nn.Conv2d(4, 8, 3, dilation=2, groups=2)),
        square, 2, 13, 13,
    )  # fmt: skip
    yield (
        "depthwise separable",
        Loss(
            conv(nn.Conv2d(4, 4, 3, groups=4), nn.Hardswish(), nn.Conv2d(4, 8, 1)), cross, 4, 9, 9
        ),
    )
    yield "GroupNorm", Loss(conv(nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8)), cross, 2, 9, 9)
    yield "residual, BatchNorm", Loss(Residual(), cross, 2, 9, 9)
    yield "U-Net", Loss(UNet(), square, 2, 8, 8)
    yield "Conv1d", Loss(
        nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 3, dilation=2),
                      nn.AdaptiveAvgPool1d(1), flat), cross, 3, 16,
    )  # fmt: skip
    yield "LSTM", Loss(Recurrent(nn.LSTM), cross, 7, 6)
    yield "GRU", Loss(Recurrent(nn.GRU), square, 7, 6)
    yield "attention", Loss(Attention(), cross, 5, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    encoder = nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 4))
    yield "transformer", Loss(encoder, cross, 5, 8)
    yield "embedding", Loss(Words(), cross, 6)


def exported(module: Loss, x: torch.Tensor, target: torch.Tensor, dynamo: bool) -> onnx.ModelProto:
    """The module with a dynamic batch."""
    names: dict[str, Any] = {"input_names": ["x", "target"], "output_names": ["loss"]}
    stream = io.BytesIO()
    if dynamo:
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.onnx.export(
            module, (x, target), dynamo=True, verbose=False, optimize=False,
            dynamic_shapes={"x": {0: batch}, "target": {0: batch}}, **names,
        )  # fmt: skip
        program.save(stream)
    else:
        axes = {"x": {0: "batch"}, "target": {0: "batch"}}
        torch.onnx.export(
            module,
            (x, target),
            stream,
            dynamo=False,
            dynamic_axes=axes,
            do_constant_folding=False,
            **names,
        )
    return onnx.load_from_string(stream.getvalue())


def compared(name: str, module: Loss, dynamo: bool) -> tuple[str, float]:
    """Returns one line of the table, and the worst difference."""
    module.eval()
    x = torch.randn(BATCH, *module.sizes)
    square = module.loss is functional.mse_loss
    target = torch.randn(BATCH, 4) if square else torch.randint(0, 4, (BATCH,))
    model = exported(module, x, target, dynamo)
    weights = dict(module.named_parameters())
    made = onnxgrad.gradient(model, "params", "loss", per_sample=True)
    ours = session(made)
    feeds = {"x": x.numpy(), "target": target.numpy()}
    names = [v.name for v in made.graph.output]
    got = dict(zip(names, ours.run(None, feeds), strict=True))

    def loss(parameters: Any, one: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, parameters, (one[None], wanted[None]))

    def theirs() -> Any:
        return torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, target)

    def one_by_one() -> Any:  # PyTorch's GRU cannot be mapped
        rows = [torch.func.grad(loss)(weights, a, b) for a, b in zip(x, target, strict=True)]
        return {n: torch.stack([row[n] for row in rows]) for n in weights}

    try:
        theirs()
    except RuntimeError:
        theirs = one_by_one
    expected = {n: v.detach().numpy() for n, v in theirs().items()}
    worst, left = 0.0, [n for n in names if n != "loss"]
    for value in expected.values():
        scale = float(np.abs(value).max()) or 1.0
        worst = max(worst, min(differ(got[n], value) / scale for n in left))
    clocks = [spent(lambda: ours.run(None, feeds)), spent(theirs)]
    return (
        f"| {name} | {'dynamo' if dynamo else 'TorchScript'} | {len(expected)} | {scans(model)} | "
        f"{worst:.1e} | {clocks[0] / clocks[1]:.2f} |"
    ), worst


def differ(got: Any, value: Any) -> float:
    """Returns the largest difference; the exporter may store a matrix transposed."""
    if got.size != value.size:
        return float("inf")
    found = [got.reshape(value.shape)]
    if value.ndim == 3:
        found.append(got.reshape(value.shape[0], value.shape[2], -1).swapaxes(1, 2))
    return min(float(np.abs(g - value).max()) for g in found)


def spent(call: Callable[[], Any]) -> float:
    """Returns the median CPU time."""
    times = []
    for _ in range(9):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def scans(model: onnx.ModelProto) -> int:
    """Returns the number of nodes that run once per sample."""
    program = load_own(model)
    samples = samples_of(program)
    gradient = onnxgrad.gradient(of_size(program, samples), "params", "loss")
    return sum(map_samples(load_own(gradient), samples, {}).scanned.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/per_sample.md")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    lines = [
        "| network | exporter | weights | once per sample | worst difference | time / PyTorch's |",
        "|---|---|---|---|---|---|",
    ]
    differences = []
    for i, (name, module) in enumerate(networks()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            line, worst = compared(name, module, bool(i % 2))
        lines.append(line)
        differences.append(worst)
        print(line, flush=True)
    lines += [
        "",
        f"Batch {BATCH}; worst difference of all {len(differences)}: {max(differences):.1e}.",
    ]
    print(lines[-1])
    if args.write:
        print(write_record("per_sample", lines))


if __name__ == "__main__":
    main()
