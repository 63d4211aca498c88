"""Forward plus all weight gradients, and whole training steps, on CUDA: onnxgrad's graphs in stock
onnxruntime beside PyTorch eager and torch.compile, in turns.

    python scripts/bench_cuda.py NAME ... [--precision float32|tf32|float16] [--record FILE]

Needs only PyTorch: the networks are defined here, in the sizes of BERT-base, GPT-2-small, ViT-B/16
and ResNet-50, with random weights, and exported by the TorchScript exporter. Feeds and results are
bound and stay on the device, and every measurement ends with a synchronisation. `--device cpu
--tiny` checks the script without a GPU. With `--precision float16`, the whole network is float16 on
both sides.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import Trainer, gradient, train, training_step  # noqa: E402  # runs from a checkout
from onnxgrad.verify.running.session import open_session  # noqa: E402
from scripts.exporting.common import Size  # noqa: E402
from scripts.sessions import session  # noqa: E402

HEAD = (
    "model", "precision", "gradient ms", "eager", "compile", "checkpointed", "step ms",
    "eager step", "MB", "MB checkpointed", "MB eager", "worst difference",
)  # fmt: skip
BASE, TINY = Size(768, 12, 12, 128), Size(32, 4, 2, 8)
CLASSES = 8


class Layer(nn.Module):
    """One layer of a transformer with its norms in front."""

    def __init__(self, size: Size, *, causal: bool) -> None:
        super().__init__()
        self.size, self.causal = size, causal
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, rows, width) -> the same."""
        b, rows, width = x.shape
        heads = self.size.heads
        split = self.qkv(self.first(x)).reshape(b, rows, 3, heads, width // heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / (width // heads) ** 0.5
        if self.causal:
            hidden = torch.full((rows, rows), -1e4, dtype=x.dtype, device=x.device).triu(1)
            scores = scores + hidden
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, rows, width)
        x = x + self.out(mixed)
        moved: Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return moved


class Tokens(nn.Module):
    """BERT's or GPT-2's shape: embeddings, layers, a head, and the cross entropy."""

    def __init__(self, size: Size, vocabulary: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.words = nn.Embedding(vocabulary, size.width)
        self.places = nn.Parameter(torch.randn(size.rows, size.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(size, causal=causal) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, vocabulary if causal else CLASSES)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """ids (batch, rows) int64, labels like ids, or (batch,) of a classifier -> scalar."""
        x = self.norm(self.layers(self.words(ids) + self.places))
        logits = self.head(x if self.causal else x[:, 0])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1))


class Patches(nn.Module):
    """ViT's shape: patches of 16, layers, a head, and the cross entropy."""

    def __init__(self, size: Size, pixels: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, size.width, 16, stride=16)
        self.places = nn.Parameter(torch.randn((pixels // 16) ** 2, size.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(size, causal=False) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x (batch, 3, pixels, pixels), labels (batch,) int64 -> scalar."""
        rows = self.cut(x).flatten(2).transpose(1, 2) + self.places
        return F.cross_entropy(self.head(self.norm(self.layers(rows)).mean(1)).float(), labels)


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        same = stride == 1 and inside == outside
        self.around = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inside, h, w) -> (batch, 4 width, h / stride, w / stride)."""
        return F.relu(self.body(x) + self.around(x))


class Residual(nn.Module):
    """ResNet-50's shape, and the cross entropy."""

    def __init__(self, width: int, counts: Sequence[int], classes: int) -> None:
        super().__init__()
        blocks, inside = [], width
        for stage, count in enumerate(counts):
            for i in range(count):
                wide = width * 2**stage
                blocks.append(Bottleneck(inside, wide, 2 if stage and i == 0 else 1))
                inside = 4 * wide
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inside, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x (batch, 3, pixels, pixels), labels (batch,) int64 -> scalar."""
        pooled = self.blocks(self.stem(x)).mean((2, 3))
        return F.cross_entropy(self.head(pooled).float(), labels)


def built(name: str, *, tiny: bool) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network in evaluation mode, drawn from seed 0, and its inputs."""
    torch.manual_seed(0)
    model, inputs = _network(name, tiny=tiny)
    for p in model.parameters():  # the exporter merges equal parameters
        p.data += 0.01 * torch.randn_like(p)
    return model.eval(), inputs


def _network(name: str, *, tiny: bool) -> tuple[nn.Module, dict[str, Tensor]]:
    size = TINY if tiny else BASE
    pixels, classes, words = (32, 4, 50) if tiny else (224, 1000, 30_000)
    batch = 2 if tiny else 32 if name == "resnet50" else 8
    images = {
        "x": torch.randn(batch, 3, pixels, pixels),
        "labels": torch.randint(0, 4, (batch,)),
    }
    ids = torch.randint(0, words, (batch, size.rows))
    made: nn.Module
    if name == "resnet50":
        made = Residual(8, (1, 1), classes) if tiny else Residual(64, (3, 4, 6, 3), classes)
        return made, images
    if name == "vit_b":
        return Patches(size, pixels), images
    causal = name == "gpt2_small"
    labels = torch.roll(ids, -1, 1) if causal else images["labels"]
    return Tokens(size, words, causal=causal), {"ids": ids, "labels": labels}


NAMES = ("bert_base", "gpt2_small", "vit_b", "resnet50")


def exported(model: nn.Module, inputs: dict[str, Tensor]) -> onnx.ModelProto:
    """The network as the TorchScript exporter writes it, with its loss."""
    file = io.BytesIO()
    torch.onnx.export(
        model, tuple(inputs.values()), file, input_names=list(inputs), output_names=["loss"],
        opset_version=17, dynamo=False, do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
    )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def bound_run(
    graph: onnx.ModelProto, feeds: dict[str, np.ndarray], device: str, *, tf32: bool
) -> tuple[Callable[[], None], Callable[[], dict[str, np.ndarray]]]:
    """Returns a function that runs the graph with feeds and results on the device, and a function
    that reads the results.
    """
    opened = session(graph, threads=0, cuda=device == "cuda", tf32=tf32)
    binding = opened.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(
            name, onnxruntime.OrtValue.ortvalue_from_numpy(value, device, 0)
        )
    for output in opened.get_outputs():
        binding.bind_output(output.name, device)

    def run() -> None:
        opened.run_with_iobinding(binding)
        binding.synchronize_outputs()

    def read() -> dict[str, np.ndarray]:
        names = [output.name for output in opened.get_outputs()]
        return dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))

    return run, read


def difference(found: dict[str, np.ndarray], model: nn.Module) -> float:
    """Returns the largest difference of a gradient from PyTorch's, relative to its maximum."""
    worst = 0.0
    for name, p in model.named_parameters():
        wanted = p.grad.float().cpu().numpy() if p.grad is not None else np.zeros(p.shape)
        off = np.abs(found[f"{name}_grad"].astype(np.float32) - wanted).max()
        worst = max(worst, float(off / max(np.abs(wanted).max(), 1e-9)))
    return worst


def medians(ways: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """Returns the milliseconds of each variant; variants run in turns after two warm-ups."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, work in ways.items():
            started = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn > 1:
                taken[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(times) for name, times in taken.items()}


def measured(name: str, precision: str, device: str, rounds: int, *, tiny: bool) -> list[str]:
    """Returns one row of the table."""
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model, inputs = built(name, tiny=tiny)
    if precision == "float16":
        model = model.half()
        inputs = {k: v.half() if v.is_floating_point() else v for k, v in inputs.items()}
    forward = exported(model, inputs)
    weights = [
        t.name for t in forward.graph.initializer if t.name in dict(model.named_parameters())
    ]
    if len(weights) != len(list(model.parameters())):
        sys.exit(f"{name}: the export does not have every parameter under its name")
    feeds = {k: v.numpy() for k, v in inputs.items()}
    graph = gradient(forward, weights, "loss")
    kept = gradient(forward, weights, "loss", checkpoint="auto")
    model, theirs = model.to(device), {k: v.to(device) for k, v in inputs.items()}
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def backward(network: Callable[..., Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        network(*theirs.values()).backward()

    def step() -> None:
        backward(model)
        optimizer.step()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    backward(model)
    eager_peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    ours, read = bound_run(graph, feeds, device, tf32=tf32)
    ours()
    off = difference(read(), model)
    ways = {
        "ours": ours,
        "checkpointed": bound_run(kept, feeds, device, tf32=tf32)[0],
        "eager": lambda: backward(model),
        "compile": lambda: backward(compiled),
    }
    found = medians(ways, device, rounds)
    ways.clear()
    trainer = Trainer(
        training_step(forward, "loss", train.AdamW(lr=1e-4), wrt=weights),
        provider=device, engine="graph",
    )  # fmt: skip
    steps = medians({"ours": lambda: trainer.step(feeds), "eager": step}, device, rounds)
    peaks = [open_session(g, provider=device).peak_memory(feeds) for g in (graph, kept)]
    ratios = [f"{found['ours'] / found[other]:.2f}" for other in ("eager", "compile")]
    return [
        name, precision, f"{found['ours']:.1f}", *ratios,
        f"{found['checkpointed'] / found['ours']:.2f}", f"{steps['ours']:.1f}",
        f"{steps['ours'] / steps['eager']:.2f}",
        *("" if p is None else f"{p / 1e6:.0f}" for p in (*peaks, eager_peak)),
        f"{off:.1e}",
    ]  # fmt: skip


def rows(arguments: argparse.Namespace) -> Iterator[str]:
    """Returns the table; ratios are onnxgrad's time over the other's."""
    for name in arguments.names or NAMES:
        found = measured(
            name, arguments.precision, arguments.device, arguments.rounds, tiny=arguments.tiny
        )
        yield f"| {' | '.join(found)} |"


def main() -> None:
    """Prints the table, and appends its rows to a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME")
    parser.add_argument("--precision", choices=("float32", "tf32", "float16"), default="float32")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--record", type=Path, help="a file to which the rows are added")
    arguments = parser.parse_args()
    head = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    print(*head, sep="\n", flush=True)
    for line in rows(arguments):
        print(line, flush=True)
        if arguments.record is not None:
            new = not arguments.record.exists()
            with arguments.record.open("a", encoding="utf-8") as record:
                record.write("\n".join([*head, line] if new else [line]) + "\n")


if __name__ == "__main__":
    main()
