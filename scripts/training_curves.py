"""Losses of our training steps beside PyTorch's: the same initial weights, batches and optimiser,
step by step.

    python scripts/training_curves.py [--only digits_mlp] [--steps 200] [--record
    scripts/results/training_curves.md]

Needs PyTorch, transformers and scikit-learn beside onnxgrad. A model is exported once at its
initial weights; then both train on the same batches. Two losses agree where they differ by less
than 1e-3 of the larger of PyTorch's and 1 % of the first one. Where float32 drifts further, because
two right computations part, the step is told.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnxgrad import train
from onnxgrad.ir.save import to_proto
from onnxgrad.verify.reference.evaluate import Reference

Batches = Iterator[dict[str, torch.Tensor]]
Beside = Callable[[Any], torch.optim.Optimizer]
TO = torch.optim
OPTIMIZERS: dict[str, tuple[train.Optimizer, Beside, float]] = {
    "sgd": (train.SGD(), TO.SGD, 0.1),
    "momentum": (train.SGD(momentum=0.9), lambda p: TO.SGD(p, momentum=0.9), 0.02),
    "nesterov, decay": (
        train.SGD(momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda p: TO.SGD(p, momentum=0.9, nesterov=True, weight_decay=1e-3),
        0.02,
    ),
    "adam": (train.Adam(), TO.Adam, 1e-3),
    "adamw": (train.AdamW(), TO.AdamW, 1e-3),
    "nadam": (train.NAdam(), TO.NAdam, 1e-3),
    "adagrad": (train.Adagrad(), TO.Adagrad, 1e-2),
    "rmsprop": (train.RMSprop(), TO.RMSprop, 1e-3),
    "adadelta": (train.Adadelta(), TO.Adadelta, 1.0),
    "adafactor": (train.Adafactor(), TO.Adafactor, 1e-2),
}


@dataclass(frozen=True)
class Case:
    """A network, its loss in both worlds, and its batches; `accuracy`: on what it is judged at
    the end, if at all.
    """

    build: Callable[[], nn.Module]
    names: tuple[str, ...]
    loss: train.Loss
    torch_loss: Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]
    batches: Callable[[int], list[dict[str, torch.Tensor]]]
    held_out: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return torch.tensor(data.data[order] / 16, dtype=torch.float32), torch.tensor(
        data.target[order]
    )


def _digit_batches(shape: tuple[int, ...]) -> Callable[[int], list[dict[str, torch.Tensor]]]:
    def batches(steps: int) -> list[dict[str, torch.Tensor]]:
        x, y = _digits()
        x, y = x[:1500].reshape(-1, *shape), y[:1500]
        rng = np.random.default_rng(1)
        chosen = [rng.integers(0, len(y), 32) for _ in range(steps)]
        return [{"x": x[i], "labels": y[i]} for i in chosen]

    return batches


def _digits_held_out(shape: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (_digits()[0][1500:].reshape(-1, *shape), _digits()[1][1500:])


def _cross_entropy(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, batch["labels"])


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class _Logits(nn.Module):
    """A transformer of the transformers package as a function of one tensor."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return self.model(**{self.name: x}).logits  # type: ignore[no-any-return]


def _gpt2() -> nn.Module:
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=60,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        use_cache=False,
        attn_implementation="eager",
    )
    return _Logits(hf.GPT2LMHeadModel(config), "input_ids")


def _vit(activation: str = "gelu") -> nn.Module:
    import transformers as hf

    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_act=activation,
        attn_implementation="eager",
    )  # fmt: skip
    return _Logits(hf.ViTForImageClassification(config), "pixel_values")


def _tokens(steps: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    starts = torch.randint(0, 60, (steps, 8, 1), generator=generator)
    x = (starts + 7 * torch.arange(16)) % 60  # a sequence that can be learned
    return [{"x": row, "labels": torch.roll(row, -1, 1)} for row in x]


def _token_loss(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.reshape(-1, 60), batch["labels"].reshape(-1))


CASES = {
    "digits_mlp": Case(
        _mlp,
        ("x",),
        train.CrossEntropy(),
        _cross_entropy,
        _digit_batches((64,)),
        _digits_held_out((64,)),
    ),
    "digits_cnn": Case(
        _cnn,
        ("x",),
        train.CrossEntropy(),
        _cross_entropy,
        _digit_batches((1, 8, 8)),
        _digits_held_out((1, 8, 8)),
    ),
    "gpt2_tiny": Case(_gpt2, ("x",), train.SequenceCrossEntropy(shift=0), _token_loss, _tokens),
    # the exporter rounds gelu's 1 / sqrt(2) to float32, which float64 sees
    "vit_relu": Case(
        lambda: _vit("relu"),
        ("x",),
        train.CrossEntropy(),
        _cross_entropy,
        _digit_batches((1, 8, 8)),
    ),
    "vit_tiny": Case(_vit, ("x",), train.CrossEntropy(), _cross_entropy, _digit_batches((1, 8, 8))),
}


def exported(model: nn.Module, example: torch.Tensor) -> onnx.ModelProto:
    """The model as a file, its parameters under PyTorch's names."""
    buffer = io.BytesIO()
    program = torch.onnx.export(
        model.eval(), (example,), input_names=["x"], output_names=["logits"], opset_version=18,
        dynamo=True, dynamic_shapes=({0: torch.export.Dim("N")},), verbose=False, optimize=False,
    )  # fmt: skip
    program.save(buffer)
    return onnx.load_from_string(buffer.getvalue())


def compare(name: str, case: Case, optimizer: str, steps: int, float64: bool) -> str:
    """One row: the largest relative difference, and where."""
    ours, theirs, rate = OPTIMIZERS[optimizer]
    torch.manual_seed(0)
    model = case.build()
    batches = case.batches(steps)
    if float64:
        model = model.double()
        # the library's Softmax rounds to float32
        nn.functional.softmax = lambda x, dim, dtype=None: torch.softmax(x, dim)  # type: ignore[assignment]
        batches = [
            {k: v.double() if v.is_floating_point() else v for k, v in b.items()} for b in batches
        ]
    proto = exported(model, batches[0]["x"])
    held = {t.name for t in proto.graph.initializer}  # a tied weight has one of its names
    named = model.named_parameters(remove_duplicate=False)
    names = [n for n, p in named if p.requires_grad and n in held]
    task = train.training_step(proto, case.loss, ours, names)
    trained = sum(task.initial[fed.name].size for fed in task.manifest.of_role("parameter"))
    assert trained == sum(p.numel() for p in model.parameters()), "not every parameter is trained"
    trainer: Any = Wide(task, rate) if float64 else train.Trainer(task, rate, threads=1)
    beside = theirs([p for p in model.parameters() if p.requires_grad])
    for group in beside.param_groups:
        group["lr"] = rate
    worst, where, first = 0.0, 0, 0.0
    for step, batch in enumerate(batches, 1):
        mine = trainer.step({k: v.numpy() for k, v in batch.items()})
        beside.zero_grad()
        loss = case.torch_loss(model(batch["x"]), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        beside.step()
        reference = float(loss.detach())
        first = first or reference
        off = abs(mine - reference) / max(reference, 0.01 * first)
        if off > worst:
            worst, where = off, step
    end = f"{reference:.5f}"
    judged = ""
    if case.held_out is not None and not float64:
        x, y = case.held_out()
        right = int((model(x).argmax(1) == y).sum())
        outputs = trainer.evaluate(
            {"x": x.numpy(), "labels": y.numpy()},
            batch_size=len(y),
            metrics={"accuracy": train.accuracy()},
        )
        judged = f"{right} / {round(outputs['accuracy'] * len(y))} of {len(y)}"
    verdict = "yes" if worst <= (1e-9 if float64 else 1e-3) else "NO"
    return (
        f"| {name} | {optimizer} | {first:.4f} | {end} | {worst:.1e} at {where} | {verdict} | "
        f"{judged} |"
    )


class Wide:
    """A training step in our float64 evaluator, with the trainer's `step`."""

    def __init__(self, task: train.TrainingStep, rate: float) -> None:
        self.task, self.rate, self.number = task, rate, 0
        self.values: dict[str, Any] = {k: v.astype(np.float64) for k, v in task.initial.items()}
        self.run = Reference(to_proto(task.train, weights=True))

    def step(self, batch: dict[str, Any]) -> float:
        """The loss, and on to the next values."""
        self.number += 1
        own = {"step": np.array(self.number), "learning_rate": np.array(self.rate)}
        wide = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in batch.items()}
        found = self.run.run({**wide, **self.values, **own})
        self.values = {f.name: found[f.next] for f in self.task.manifest.inputs if f.next}
        return float(found[self.task.manifest.loss])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--optimizers", nargs="*", default=list(OPTIMIZERS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--float64", action="store_true", help="both in float64, to 1e-9")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | optimiser | first loss | last loss | worst difference | agrees | right: "
        "PyTorch / ours |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in args.only:
        for optimizer in args.optimizers:
            print(compare(name, CASES[name], optimizer, args.steps, args.float64), flush=True)


if __name__ == "__main__":
    main()
