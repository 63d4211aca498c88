"""Compares losses of our training steps with PyTorch's, step by step, with the same initial
weights, batches and optimiser.

    python scripts/training_curves.py [--only digits_mlp] [--settings adamw 'clip by norm']
        [--steps 200] [--float64] [--moved] [--exporter raw default torchscript]
        [--autocast bfloat16]

Needs PyTorch, transformers and scikit-learn beside onnxgrad. A model is exported once with its
initial weights; then both train on the same batches. Two losses agree if they differ by less than
1e-3 of the larger of PyTorch's loss and 1 % of the first loss. Two right computations may drift
further apart in float32. `--float64` therefore compares in double precision, to 1e-9: ours in
numpy, and PyTorch's with the few constants that an ONNX file stores as float32. `--moved` shows how
far PyTorch drifts from itself: PyTorch trains in our place, from weights that are off by a
rounding. `--exporter` chooses the file: torch.export's exporter without its optimisations (raw) or
with default options (default), or TorchScript with default options. `--autocast` compares products
in a narrow dtype, ours and those of torch.autocast on the CPU, with PyTorch in float64.
"""

from __future__ import annotations

import argparse
import copy
import io
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnxgrad import train
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.verify.reference.evaluate import Reference
from scripts.curve_networks import CASES, Case
from scripts.curve_settings import OPTIMIZERS, Setting, options
from scripts.records import conditions

Batch = dict[str, torch.Tensor]


BY_EXPORT: dict[str, Any] = {"dynamo": True, "verbose": False}
EXPORTERS: dict[str, dict[str, Any]] = {
    "raw": {**BY_EXPORT, "optimize": False, "opset_version": 18},
    "default": BY_EXPORT,
    "torchscript": {"dynamo": False},
}


def exported(model: nn.Module, example: torch.Tensor, exporter: str = "raw") -> onnx.ModelProto:
    """Returns the exported model. Its parameters have PyTorch's names if the exporter is raw."""
    how = dict(EXPORTERS[exporter], input_names=["x"], output_names=["logits"])
    if how["dynamo"]:
        how["dynamic_shapes"] = ({0: torch.export.Dim("N")},)
    else:
        how["dynamic_axes"] = {"x": {0: "N"}}
    buffer = io.BytesIO()
    out = None if how["dynamo"] else buffer
    program = torch.onnx.export(model.eval(), (example,), out, **how)
    if program is not None:
        program.save(buffer)
    return onnx.load_from_string(buffer.getvalue())


class Gelu(nn.Module):
    """GELU with 1 / sqrt(2) as the exporter writes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (1 + erf(x / sqrt(2))) / 2"""
        return 0.5 * x * (1.0 + torch.erf(x * float(np.float32(0.5**0.5))))


class GeluByTanh(nn.Module):
    """GPT-2's GELU with its two numbers as the exporter writes them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2"""
        inner = x + float(np.float32(0.044715)) * torch.pow(x, 3.0)
        return 0.5 * x * (1.0 + torch.tanh(float(np.float32((2 / np.pi) ** 0.5)) * inner))


_AS_WRITTEN = {"GELU": Gelu, "GELUActivation": Gelu, "NewGELUActivation": GeluByTanh}


def in_float64(model: nn.Module) -> nn.Module:
    """Returns the model in double precision, with the rounding of its file: the epsilon of a
    LayerNormalization is an attribute, and attributes are float32.
    """
    # the library's attention rounds its Softmax to float32
    nn.functional.softmax = lambda x, dim, dtype=None: torch.softmax(x, dim)  # type: ignore[assignment]
    for module in list(model.modules()):
        if isinstance(module, nn.LayerNorm):
            module.eps = float(np.float32(module.eps))
        for name, child in module.named_children():
            if type(child).__name__ in _AS_WRITTEN:
                setattr(module, name, _AS_WRITTEN[type(child).__name__]())
    return model.double()


def wide(batch: Batch) -> Batch:
    """Floating-point arrays in double precision."""
    return {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}


class Wide:
    """A training step in our float64 evaluator, with the trainer's `step`."""

    def __init__(self, task: train.TrainingStep, rate: float) -> None:
        self.task, self.rate, self.batches = task, rate, 0
        self.values: dict[str, Any] = {k: v.astype(np.float64) for k, v in task.initial.items()}
        self.run = _reference(task.train)
        self.update = None if task.update is None else _reference(task.update)

    def step(self, batch: dict[str, Any]) -> float:
        """Returns the loss, and updates the values."""
        count = self.task.manifest.accumulate
        number = self.batches // count + 1
        self.batches += 1
        own = {"step": np.array(number), "learning_rate": np.array(self.rate)}
        found = self._next(self.run, {**batch, **own})
        if self.update is not None and self.batches % count == 0:
            self._next(self.update, own)
        return float(found[self.task.manifest.loss])

    def _next(self, run: tuple[Reference, set[str]], known: dict[str, Any]) -> Any:
        reference, names = run
        found = reference.run({k: v for k, v in {**known, **self.values}.items() if k in names})
        self.values |= {f.name: found[f.next] for f in self.task.manifest.inputs if f.next in found}
        return found


class Moved:
    """PyTorch itself with the trainer's `step`, each weight off by at most half a rounding."""

    def __init__(self, model: nn.Module, case: Case, setting: Setting) -> None:
        self.model, self.case, self.setting, self.batches = copy.deepcopy(model), case, setting, 0
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for p in self.model.parameters():
                by = 2 * torch.rand(p.shape, generator=generator, dtype=p.dtype) - 1
                p.mul_(1 + torch.finfo(p.dtype).eps / 2 * by)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = setting.optimizer(self.parameters)
        self.schedule = setting.schedule[1](self.optimizer) if setting.schedule else None

    def step(self, batch: dict[str, Any]) -> float:
        """Returns the loss of a micro-batch, and updates the weights after the last one of a
        step.
        """
        given = {name: torch.from_numpy(a) for name, a in batch.items()}
        loss = self.case.torch_loss(self.model(given["x"]), given)
        (loss / self.setting.accumulate).backward()  # type: ignore[no-untyped-call]
        self.batches += 1
        if self.batches % self.setting.accumulate == 0:
            self.setting.clip(self.parameters)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.schedule is not None:
                self.schedule.step()
        return float(loss.detach())


def _reference(program: Program) -> tuple[Reference, set[str]]:
    proto = to_proto(program, weights=True)
    return Reference(proto), {v.name for v in proto.graph.input}


def compare(
    name: str,
    case: Case,
    title: str,
    setting: Setting,
    steps: int,
    way: str = "float32",
    exporter: str = "raw",
) -> str:
    """Returns one row: the largest relative difference, and its step. way: float32, float64,
    moved32 or moved64.
    """
    moved, double = way.startswith("moved"), way.endswith("64")
    torch.manual_seed(0)
    model = case.build().eval()
    batches = case.batches(steps * setting.accumulate)
    if double:
        model, batches = in_float64(model), [wide(b) for b in batches]
    trainer: Any = Moved(model, case, setting)
    trained = expected = sum(p.numel() for p in model.parameters())
    if not moved:
        task = task_of(model, case, setting, batches[0]["x"], exporter)
        trained = sum(task.initial[fed.name].size for fed in task.manifest.of_role("parameter"))
        trainer = Wide(task, setting.hyper["lr"]) if double else train.Trainer(task, threads=1)
    assert trained == expected or exporter != "raw", "not every parameter is trained"
    ours, theirs, clipped = both(trainer, model, case, setting, batches)
    scale = np.maximum(theirs, 0.01 * theirs[0])
    off = np.abs(ours - theirs) / scale
    where = int(off.argmax())
    agrees = bool(off[where] <= (1e-9 if double else 1e-3))
    judged = accuracies(trainer, model, case) if way == "float32" else ""
    other = "" if trained == expected else f", trains {trained} numbers for {expected}"
    by = "" if exporter == "raw" else f", {exporter}"
    return (
        f"| {name}{by} | {title}{other}{f' ({clipped} steps clipped)' if clipped else ''} | "
        f"{theirs[0]:.4f} | "
        f"{theirs[-1]:.5f} | {off[where]:.1e} at {where + 1} | {'yes' if agrees else 'NO'} | "
        f"{judged} |"
    )


def task_of(
    model: nn.Module, case: Case, setting: Setting, example: torch.Tensor, exporter: str
) -> train.TrainingStep:
    """Returns the step of the file by all parameters, by name if the file has their names."""
    proto = exported(model, example, exporter)
    if exporter != "raw":
        return setting.step(proto, case.loss, "params")
    held = {t.name for t in proto.graph.initializer}  # a tied weight has one of its names
    named = model.named_parameters(remove_duplicate=False)
    return setting.step(proto, case.loss, [n for n, p in named if p.requires_grad and n in held])


def both(
    trainer: Any, model: nn.Module, case: Case, setting: Setting, batches: list[Batch]
) -> tuple[Any, Any, int]:
    """Returns our losses and PyTorch's, each the mean over a step's micro-batches, and the number
    of steps in which PyTorch clipped.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = setting.optimizer(parameters)
    schedule = setting.schedule[1](optimizer) if setting.schedule else None
    ours, theirs, clipped, count = [], [], 0, setting.accumulate
    for first in range(0, len(batches), count):
        optimizer.zero_grad()
        for batch in batches[first : first + count]:
            ours.append(trainer.step({k: v.numpy() for k, v in batch.items()}))
            loss = case.torch_loss(model(batch["x"]), batch)
            (loss / count).backward()  # type: ignore[no-untyped-call]
            theirs.append(float(loss.detach()))
        clipped += setting.clip(parameters)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return *(np.array(losses).reshape(-1, count).mean(1) for losses in (ours, theirs)), clipped


def accuracies(trainer: train.Trainer, model: nn.Module, case: Case) -> str:
    """Returns how many held-out examples PyTorch's network and ours classify correctly."""
    if case.held_out is None:
        return ""
    x, y = case.held_out()
    right = int((model(x).argmax(1) == y).sum())
    found = trainer.evaluate(
        {"x": x.numpy(), "labels": y.numpy()},
        batch_size=len(y),
        metrics={"accuracy": train.accuracy()},
    )
    return f"{right} / {round(found['accuracy'] * len(y))} of {len(y)}"


def under_autocast(name: str, case: Case, title: str, setting: Setting, args: Any) -> str:
    """Returns one row: the largest and the mean difference from PyTorch in float64, relative to the
    first loss, for PyTorch in float32, its autocast and ours.
    """
    torch.manual_seed(0)
    model, batches = case.build().eval(), case.batches(args.steps)
    narrow = {"autocast": args.autocast}
    scaling = {"loss_scale": "dynamic"} if args.autocast == "float16" else {}
    proto = exported(model, batches[0]["x"], args.exporter[0])
    trainer = train.Trainer(setting.step(proto, case.loss, "params", **narrow, **scaling))
    exact = alone(model.double(), case, setting, [wide(b) for b in batches])
    losses = {
        "float32": alone(model.float(), case, setting, batches),
        "autocast": alone(model, case, setting, batches, args.autocast),
        "ours": np.array([trainer.step({k: v.numpy() for k, v in b.items()}) for b in batches]),
    }
    off = {key: np.abs(found - exact) / exact[0] for key, found in losses.items()}
    cells = " | ".join(f"{a.max():.1e}, {a.mean():.1e}" for a in off.values())
    return f"| {name} | {args.autocast} | {exact[0]:.4f} | {exact[-1]:.5f} | {cells} |"


def alone(
    model: nn.Module, case: Case, setting: Setting, batches: list[Batch], dtype: str = ""
) -> Any:
    """Returns PyTorch's losses from these weights, which do not change, with products in a
    dtype.
    """
    model = copy.deepcopy(model)
    optimizer = setting.optimizer(model.parameters())
    scaler, losses = torch.amp.GradScaler("cpu", enabled=dtype == "float16"), []
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", getattr(torch, dtype or "bfloat16"), enabled=bool(dtype)):
            loss = case.torch_loss(model(batch["x"]), batch)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return np.array(losses)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--settings", nargs="*", help="optimisers and options; default: all")
    parser.add_argument("--float64", action="store_true", help="both in float64, to 1e-9")
    parser.add_argument("--moved", action="store_true", help="PyTorch beside itself")
    parser.add_argument(
        "--exporter", nargs="*", choices=list(EXPORTERS), default=["raw"], help="of the file"
    )
    parser.add_argument("--autocast", choices=["bfloat16", "float16"], help="dtype of products")
    args = parser.parse_args()
    torch.set_num_threads(1)
    way = f"{'moved' if args.moved else 'float'}{64 if args.float64 else 32}"
    known = {**OPTIMIZERS, **options(args.steps)}
    print(f"{conditions()[:-1]}, PyTorch {torch.__version__}.\n")
    if args.autocast:
        for name, title in product(args.only, args.settings or ["adamw"]):
            print(under_autocast(name, CASES[name], title, known[title], args), flush=True)
        return
    print(
        "| model | setting | first loss | last loss | worst difference | agrees | right: "
        "PyTorch / ours |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, title, exporter in product(args.only, args.settings or known, args.exporter):
        setting = known[title]
        try:
            row = compare(name, CASES[name], title, setting, args.steps, way, exporter)
        except torch.onnx.OnnxExporterError as error:
            row = f"| {name}, {exporter} | {title} | | | not exported: {error} | | |"
        print(row.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
