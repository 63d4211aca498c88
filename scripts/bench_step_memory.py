"""Peak memory of training: our trainer's forms and PyTorch's AdamW, each in its own process.

    python scripts/bench_step_memory.py [NAME ...] [--cold]

The result is the peak of resident memory over five steps, minus the resident memory before them. It
includes parameters, states and both buffer sets. Before the five steps, everything is imported and
one step of the model's small version runs, so that libraries that load late do not count; with
--cold no step runs before. The step is written to a folder beforehand. Needs PyTorch and the
full-size models that export_training.py writes.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fetch_models import cache_folder
from records import conditions

STEPS = 5
FORMS = ("torch", "blocks", "graph", "checkpoint")
SMALL = Path(__file__).resolve().parent.parent / "models" / "training"


def small_of(name: str) -> str:
    """Returns the model whose small version runs before the measurement."""
    return name.removesuffix("_deep")


def inputs_of(path: Path) -> dict[str, Any]:
    """Returns the batch recorded beside a model."""
    with np.load(path.with_suffix(".npz")) as record:
        return {k.removeprefix("in:"): record[k] for k in record.files if k.startswith("in:")}


def resident() -> int:
    """Returns the bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak() -> int:
    """Returns the peak of this process's resident memory in bytes.

    getrusage is not used, because its peak includes the parent's memory at the fork.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def torch_steps(name: str, cold: bool) -> int:
    """Runs PyTorch's steps. Returns the bytes in memory before them."""
    import torch
    from exporting.losses import MODELS
    from reference_gradients import build

    torch.set_num_threads(1)

    def run(which: str, full: bool, steps: int) -> None:
        model, inputs = build(MODELS[which], full=full)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            model(*inputs.values()).backward()
            optimizer.step()

    if not cold:
        run(small_of(name), False, 1)
    before = resident()
    run(name, True, STEPS)
    return before


def our_steps(name: str, folder: Path, form: str, cold: bool) -> int:
    """Runs our trainer's steps. Returns the bytes in memory before them."""
    import onnxruntime  # noqa: F401  # part of the imports

    from onnxgrad import train

    engine: Any = "blocks" if form == "blocks" else "graph"

    def run(place: Path, batch: dict[str, Any], steps: int) -> None:
        trainer = train.Trainer(place, 1e-4, threads=1, engine=engine)
        for _ in range(steps):
            trainer.step(batch)

    small = inputs_of(SMALL / small_of(name))
    batch = inputs_of(cache_folder("training") / name)
    if not cold:
        run(folder / "small", small, 1)
    before = resident()
    run(folder / ("checkpoint" if form == "checkpoint" else "plain"), batch, STEPS)
    return before


def measured(name: str, form: str, folder: str, cold: bool) -> float:
    """Returns the megabytes of one form."""
    command = [sys.executable, __file__, name, "--form", form, "--folder", folder]
    command += ["--cold"] if cold else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def make(name: str, folder: Path) -> None:
    """Writes the step folders: plain, with checkpoints, and of the small version."""
    from onnxgrad import train

    full, small = cache_folder("training") / name, SMALL / small_of(name)
    forms: dict[str, tuple[Path, Any]] = {"plain": (full, None), "checkpoint": (full, "auto")}
    for form, (path, choice) in (forms | {"small": (small, None)}).items():
        with np.load(path.with_suffix(".npz")) as record:
            keys = [key.removeprefix("grad:") for key in record.files if key.startswith("grad:")]
        names = [n for n in keys if n not in inputs_of(path)]
        model = path.with_suffix(".onnx")
        step = train.training_step(model, None, train.AdamW(), names, checkpoint=choice)
        train.save_step(step, folder / form)


def main() -> None:
    """Prints the table, or with --form the megabytes of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=["mlp", "bert", "gpt2", "llama"])
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--form", choices=FORMS)
    parser.add_argument("--folder", default="", type=Path)
    args = parser.parse_args()
    if args.form is not None:
        name = args.names[0]
        if args.form == "torch":
            before = torch_steps(name, args.cold)
        else:
            before = our_steps(name, args.folder, args.form, args.cold)
        print((peak() - before) / 1e6)
        return
    print(conditions() + "\n")
    print(
        "| model | PyTorch MB | blocks | graph | checkpoint auto | blocks/PyTorch | graph/PyTorch |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in args.names:
        with tempfile.TemporaryDirectory() as folder:
            make(name, Path(folder))
            found: dict[str, Any] = {
                form: np.median([measured(name, form, folder, args.cold) for _ in range(3)])
                for form in FORMS
            }
        cells = " | ".join(f"{found[form]:.0f}" for form in FORMS)
        ratios = f"{found['blocks'] / found['torch']:.2f} | {found['graph'] / found['torch']:.2f}"
        print(f"| {name} | {cells} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
