"""Peak memory of gradients by all weights, with memory budgets and checkpoint policies, in stock
onnxruntime with default options on one thread. Shows whether each budget is kept or refused.

    python scripts/bench_budgets.py [NETWORK ...]

The networks are exported by PyTorch's TorchScript exporter. Each run is a fresh process; the peak
is resident memory above the loaded session's, with a budget the largest of three runs. `without
reuse` is a run with `SessionOptions.enable_mem_reuse = False`.
"""

from __future__ import annotations

import argparse
import io
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F

from onnxgrad import InputError, gradient, load
from onnxgrad.grad.checkpointing.memory import peak_of

CHILD = """
import sys, time
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 4
options.enable_mem_reuse = sys.argv[3] == "reuse"
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
x = np.load(sys.argv[2])
def memory(field):
    return int(next(l for l in open("/proc/self/status") if l.startswith(field)).split()[1])
base = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak that loading reached
started = time.process_time()
session.run(None, {session.get_inputs()[0].name: x})
print((memory("VmHWM") - base) / 1024, time.process_time() - started)
"""


class Layers(nn.Module):
    """Layers one after the other, with the mean square of the result as the loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


class Attention(nn.Module):
    """A layer of a transformer."""

    def __init__(self, d: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.n, self.m = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.a, self.b = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Any) -> Any:
        b, n, d = x.shape
        q, k, v = self.q(self.n(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = torch.softmax(q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5, -1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(b, n, d))
        return x + self.b(F.gelu(self.a(self.m(x))))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(i, o, 3, stride, 1), nn.Conv2d(o, o, 3, 1, 1)
        self.short = nn.Conv2d(i, o, 1, stride) if i != o else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.b(F.relu(self.a(x))) + self.short(x))


def _pair(i: int, o: int) -> nn.Module:
    each = [nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)]
    return nn.Sequential(*(m for c in each for m in (c, nn.GroupNorm(4, o), nn.SiLU())))


class UNet(nn.Module):
    """Three levels with skip connections."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList([_pair(3, c), _pair(c, 2 * c), _pair(2 * c, 4 * c)])
        self.middle = _pair(4 * c, 8 * c)
        ups = [(8 * c, 4 * c), (4 * c, 2 * c), (2 * c, c)]
        self.up = nn.ModuleList([nn.ConvTranspose2d(i, o, 2, 2) for i, o in ups])
        self.joined = nn.ModuleList([_pair(i, o) for i, o in ups])

    def forward(self, x: Any) -> Any:
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([up(x), kept.pop()], 1))
        return x


def _mlp(activation: nn.Module) -> tuple[nn.Module, Any]:
    layers = [m for _ in range(60) for m in (nn.Linear(256, 256), activation)]
    return Layers(*layers), torch.randn(2048, 256)


def _residual(width: int, images: int) -> tuple[nn.Module, Any]:
    sizes = [width * k for k in (1, 1, 1, 2, 2, 4, 4, 8, 8)]
    pairs = itertools.pairwise(sizes)
    layers = [Residual(i, o, 1 if i == o else 2) for i, o in pairs]
    return Layers(nn.Conv2d(3, width, 3, 1, 1), *layers), torch.randn(images, 3, 64, 64)


NETWORKS: dict[str, Any] = {
    "60 layers of Gelu": lambda: _mlp(nn.GELU()),
    "60 layers of Relu": lambda: _mlp(nn.ReLU()),
    "24-layer transformer": lambda: (
        Layers(*(Attention(128) for _ in range(24))), torch.randn(4, 192, 128)),
    "12-layer transformer": lambda: (
        Layers(*(Attention(256) for _ in range(12))), torch.randn(2, 256, 256)),
    "U-Net": lambda: (Layers(UNet()), torch.randn(2, 3, 128, 128)),
    "ResNet": lambda: _residual(32, 4),
    "narrow ResNet": lambda: _residual(16, 16),
    "chain of convolutions": lambda: (
        Layers(nn.Conv2d(3, 16, 3, 1, 1), *(Residual(16, 16, 1) for _ in range(12))),
        torch.randn(2, 3, 96, 96)),
}  # fmt: skip


def measured(graph: onnx.ModelProto, folder: Path, how: str = "reuse") -> tuple[float, float]:
    """Returns the MB and seconds of a run in a fresh process."""
    onnx.save(graph, folder / "graph.onnx")
    words = [sys.executable, "-c", CHILD, folder / "graph.onnx", folder / "x.npy", how]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    peak, seconds = done.stdout.split()
    return float(peak), float(seconds)


def main() -> None:
    """Prints a row for each network and choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    print("| network | choice | estimate MB | peak MB | of budget | of plain | time |")
    print("|---|---|---|---|---|---|---|")
    for name in parser.parse_args().networks:
        torch.manual_seed(0)
        network, x = NETWORKS[name]()
        buffer = io.BytesIO()
        torch.onnx.export(network, (x,), buffer, dynamo=False, input_names=["x"],
                          output_names=["loss"], opset_version=20)  # fmt: skip
        model = onnx.load_from_string(buffer.getvalue())
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            np.save(folder / "x.npy", x.numpy())
            plain, seconds = measured(gradient(model, "params", "loss"), folder)
            for choice in ("everything", "auto", "products", 0.7, 0.4, 0.25):
                budget = int(plain * choice * 2**20) if isinstance(choice, float) else None
                label = str(choice) if budget is None else f"{budget / 2**20:.0f} MB"
                try:
                    graph = gradient(model, "params", "loss", checkpoint=budget or choice)
                except InputError as error:
                    least = int(str(error).rpartition(" ")[2]) / 2**20
                    print(
                        f"| {name} | {label} | {least:.0f} at least | refused | | | |", flush=True
                    )
                    continue
                peak, taken = max(measured(graph, folder) for _ in range(3 if budget else 1))
                share = "" if budget is None else f"{peak * 2**20 / budget:.2f}"
                estimate = peak_of(load(graph).main) / 2**20
                print(f"| {name} | {label} | {estimate:.0f} | {peak:.0f} | {share} "
                      f"| {peak / plain:.2f} | {taken / seconds:.2f} |", flush=True)  # fmt: skip
                if choice in ("everything", "auto"):
                    peak, taken = measured(graph, folder, "none")
                    print(f"| {name} | {label}, without reuse | | {peak:.0f} | | "
                          f"{peak / plain:.2f} | {taken / seconds:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
