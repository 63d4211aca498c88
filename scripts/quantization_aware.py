"""What does quantisation-aware training win back, beside torch.ao.quantization?

    python scripts/quantization_aware.py [--seeds 5] [--epochs 5] [--write]

Needs PyTorch beside onnxgrad. PyTorch trains small networks on the digits of scripts/examples. Each
is then quantised twice, by onnxruntime.quantization (QDQ) and by torch.ao.quantization, with one
scale per tensor for weights and activations, calibrated on the training digits. Both results train
for as many further epochs on the same batches with the same optimiser and rate: ours with `ste`,
from the integers alone and from the floats (`original`), PyTorch's with `prepare_qat`. The float
network trains on, too, as the bound of what further training wins.

Held-out digits are measured on what would be deployed: the written ONNX file in onnxruntime, and
PyTorch's converted network with its integer kernels.
"""

from __future__ import annotations

import argparse
import copy
import io
import itertools
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from torch import nn
from torch.ao import quantization as ao

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnxgrad
from scripts.examples.make_digits import TRAINED_ON, digits
from scripts.records import write_record

Batch = dict[str, NDArray[Any]]
RATE, SIZE, FLOAT_EPOCHS = 2e-3, 32, 20
BITS = {8: (QuantType.QInt8, -128, 127), 4: (QuantType.QInt4, -8, 7)}
NETWORKS: dict[str, Callable[[], list[nn.Module]]] = {
    "mlp": lambda: [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)],
    "cnn": lambda: [
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 10),
    ],
    "depthwise": lambda: [
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(), nn.Conv2d(16, 32, 1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.ReLU(),
        nn.Conv2d(32, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    ],
}  # fmt: skip
COLUMNS = (
    "float", "float, with more training", "quantised by onnxruntime.quantization",
    "the same, trained by `fit --ste`", "the same, with `--original`",
    "quantised by torch.ao", "prepared for torch.ao (prepare_qat) and trained",
)  # fmt: skip


class Quantised(nn.Module):
    """A network with the places at which torch.ao quantises its input and dequantises its
    scores.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.quant, self.layers = ao.QuantStub(), nn.Sequential(*layers)
        self.dequant = ao.DeQuantStub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.dequant(self.layers(self.quant(x)))
        return found


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """The batches by which onnxruntime calibrates the activations."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches: Iterator[Batch] = iter(batches)

    def get_next(self) -> Batch | None:
        batch = next(self._batches, None)
        return None if batch is None else {"x": batch["x"]}


@dataclass(frozen=True)
class Data:
    """The batches of a float network's training, those of the training that follows, and the
    held-out digits.
    """

    first: list[Batch]
    further: list[Batch]
    held_out: Batch


def data_of(seed: int, epochs: int) -> Data:
    """Returns the digits, of which random ones are held out, in a random order for each epoch."""
    images, labels = digits()
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(len(images))
    images, labels = images[mixed].reshape(-1, 1, 8, 8), labels[mixed]
    batches = [
        {"x": images[rows], "labels": labels[rows]}
        for _ in range(FLOAT_EPOCHS + epochs)
        for rows in np.array_split(rng.permutation(TRAINED_ON), TRAINED_ON // SIZE)
    ]
    first = FLOAT_EPOCHS * (TRAINED_ON // SIZE)
    held_out = {"x": images[TRAINED_ON:], "labels": labels[TRAINED_ON:]}
    return Data(batches[:first], batches[first:], held_out)


def trained(net: nn.Module, batches: list[Batch]) -> nn.Module:
    """Trains a network of PyTorch in place, and returns it."""
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    net.train()
    for batch in batches:
        optimizer.zero_grad()
        scores = net(torch.from_numpy(batch["x"]))
        nn.functional.cross_entropy(scores, torch.from_numpy(batch["labels"])).backward()
        optimizer.step()
    return net.eval()


def scored(scores: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float]:
    """Returns loss and accuracy."""
    loss = nn.functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(labels))
    return loss.item(), float((scores.argmax(1) == labels).mean())


def of_torch(net: nn.Module, held_out: Batch) -> tuple[float, float]:
    with torch.no_grad():
        return scored(net(torch.from_numpy(held_out["x"])).numpy(), held_out["labels"])


def of_file(model: onnx.ModelProto, held_out: Batch) -> tuple[float, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return scored(session.run(None, {"x": held_out["x"]})[0], held_out["labels"])


def exported(net: Quantised) -> onnx.ModelProto:
    """Returns the float network as a file."""
    file = io.BytesIO()
    layers = copy.deepcopy(net.layers).eval()
    names = {"input_names": ["x"], "output_names": ["logits"], "dynamic_axes": {"x": {0: "N"}}}
    torch.onnx.export(
        layers, (torch.zeros(2, 1, 8, 8),), file, dynamo=False, opset_version=20, **names
    )
    found = onnx.version_converter.convert_version(onnx.load_from_string(file.getvalue()), 21)
    return found


def by_onnxruntime(model: onnx.ModelProto, bits: int, batches: list[Batch]) -> onnx.ModelProto:
    """Returns the file that onnxruntime's quantiser writes."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float.onnx"), Path(folder, "int.onnx")
        onnx.save(model, before)
        quantize_static(
            before, after, Reader(batches), quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8, weight_type=BITS[bits][0],
        )  # fmt: skip
        return onnx.load(after)


def prepared(net: Quantised, bits: int) -> Any:
    """Returns the network with torch.ao's fake quantisation: one scale per tensor."""
    _, low, high = BITS[bits]
    weights = ao.FakeQuantize.with_args(
        observer=ao.MinMaxObserver, quant_min=low, quant_max=high, dtype=torch.qint8,
        qscheme=torch.per_tensor_symmetric,
    )  # fmt: skip
    fused = copy.deepcopy(net).train()
    layers = fused.layers
    pairs = [
        [f"layers.{i}", f"layers.{i + 1}"]
        for i, (a, b) in enumerate(itertools.pairwise(layers))
        if isinstance(a, (nn.Conv2d, nn.Linear)) and isinstance(b, nn.ReLU)
    ]
    fused.qconfig = ao.QConfig(ao.get_default_qat_qconfig("qnnpack").activation, weights)
    return ao.prepare_qat(ao.fuse_modules_qat(fused, pairs))


def calibrated(net: Any, batches: list[Batch]) -> Any:
    """Lets the observers see the batches."""
    with torch.no_grad():
        for batch in batches:
            net(torch.from_numpy(batch["x"]))
    return net


def compare(name: str, bits: int, seed: int, epochs: int) -> list[tuple[float, float]]:
    """Returns the held-out loss and accuracy of each column."""
    torch.manual_seed(seed)
    data = data_of(seed, epochs)
    net = Quantised(NETWORKS[name]())
    trained(net, data.first)
    model, calibration = exported(net), data.further[: TRAINED_ON // SIZE]
    stored = by_onnxruntime(model, bits, calibration)
    how = {"rate": RATE, "seed": None, "threads": 1, "ste": True}
    ours = [
        onnxgrad.fit(stored, data.further, "cross_entropy", "adam", **how, **more)
        for more in ({}, {"original": model})
    ]
    ready = calibrated(prepared(net, bits), calibration)
    peers = [ready, trained(copy.deepcopy(ready), data.further)]
    held_out = data.held_out
    return [
        of_torch(net, held_out),
        of_torch(trained(copy.deepcopy(net), data.further), held_out),
        *(of_file(m, held_out) for m in (stored, *ours)),
        *(of_torch(ao.convert(copy.deepcopy(p).eval()), held_out) for p in peers),
    ]


def lines_of(seeds: int, epochs: int) -> Iterator[str]:
    """Yields the lines of the record."""
    held_out = len(digits()[1]) - TRAINED_ON
    yield f"Loss and accuracy of {held_out} held-out digits: the mean of {seeds} runs (other"
    yield "weights, order and held-out digits), with the least and the largest accuracy. Adam at a"
    yield f"rate of {RATE:g}, batches of {SIZE}: {FLOAT_EPOCHS} epochs in float, then {epochs}"
    yield "more where it trains on. Activations have 8 bits; one scale per tensor."
    for bits in BITS:
        yield ""
        yield f"Weights of {bits} bits:"
        yield ""
        yield f"| | {' | '.join(NETWORKS)} |"
        yield f"|---|{'---|' * len(NETWORKS)}"
        table = {}
        for name in NETWORKS:
            each = np.array([compare(name, bits, seed, epochs) for seed in range(seeds)])
            table[name] = [
                f"{loss:.3f}, {100 * right:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
                for (loss, right), low, high in zip(
                    each.mean(0), each[..., 1].min(0), each[..., 1].max(0)
                )
            ]
        for i, column in enumerate(COLUMNS):
            yield f"| {column} | {' | '.join(table[name][i] for name in NETWORKS)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the record")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # onnxruntime's quantiser recommends a preparation
    warnings.simplefilter("ignore")  # torch.ao and TorchScript's exporter announce successors
    torch.backends.quantized.engine = "qnnpack"
    torch.set_num_threads(1)
    lines = []
    for line in lines_of(args.seeds, args.epochs):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        print(write_record("quantization_aware", [*lines, "", f"torch {torch.__version__}."]))


if __name__ == "__main__":
    main()
