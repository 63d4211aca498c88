"""Peak memory of training: our trainer's forms and PyTorch's AdamW, each in its own process.

    python scripts/bench_step_memory.py [NAME ...]

Resident memory at its peak over five steps, less what it was when all was imported; parameters,
states and both buffer sets are in it. The step is made beforehand, as a folder. Needs PyTorch and
the full-size models that export_training.py writes.
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

STEPS = 5
FORMS = ("torch", "blocks", "graph", "checkpoint")


def inputs_of(name: str) -> dict[str, Any]:
    """The recorded batch of a model."""
    with np.load(cache_folder("training") / f"{name}.npz") as record:
        return {k.removeprefix("in:"): record[k] for k in record.files if k.startswith("in:")}


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak() -> int:
    """The most bytes that this process ever had in memory.

    Not getrusage's: that begins with what the parent had when it started this process.
    """
    told = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in told if line.startswith("VmHWM")).split()[1]) * 1024


def torch_steps(name: str) -> int:
    """Run PyTorch's steps; the bytes before."""
    import torch
    from exporting.losses import MODELS
    from reference_gradients import build

    torch.set_num_threads(1)
    # what PyTorch and the library load late is no part of the comparison
    small, inputs = build(MODELS[name], full=MODELS[name].full_only)
    warm = torch.optim.AdamW(small.parameters(), 1e-4)
    if not MODELS[name].full_only:
        small(*inputs.values()).backward()
        warm.step()
    del small, warm
    before = resident()
    model, inputs = build(MODELS[name], full=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        model(*inputs.values()).backward()
        optimizer.step()
    return before


def our_steps(name: str, folder: str, form: str) -> int:
    """Run our trainer's steps; the bytes before."""
    import onnxruntime  # noqa: F401  # part of the imports

    from onnxgrad import train

    batch = inputs_of(name)
    before = resident()
    engine: Any = "blocks" if form == "blocks" else "graph"
    trainer = train.Trainer(folder, 1e-4, threads=1, engine=engine)
    for _ in range(STEPS):
        trainer.step(batch)
    return before


def measured(name: str, form: str, folder: str) -> float:
    """Megabytes of one form."""
    command = [sys.executable, __file__, name, "--form", form, "--folder", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def make(name: str, folder: Path) -> None:
    """The steps as folders, plain and with checkpoints."""
    from onnxgrad import train

    path, batch = cache_folder("training") / f"{name}.onnx", inputs_of(name)
    with np.load(path.with_suffix(".npz")) as record:
        keys = [key.removeprefix("grad:") for key in record.files if key.startswith("grad:")]
    names = [n for n in keys if n not in batch]
    for form, choice in (("plain", None), ("checkpoint", "auto")):
        step = train.training_step(path, None, train.AdamW(), names, checkpoint=choice)
        train.save_step(step, folder / form)


def main() -> None:
    """Print the table, or with --form the megabytes of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=["mlp", "bert", "gpt2", "llama"])
    parser.add_argument("--form", choices=FORMS)
    parser.add_argument("--folder", default="")
    args = parser.parse_args()
    if args.form is not None:
        name, ours = args.names[0], args.form != "torch"
        before = our_steps(name, args.folder, args.form) if ours else torch_steps(name)
        print((peak() - before) / 1e6)
        return
    print(
        "| model | PyTorch MB | blocks | graph | checkpoint auto | blocks/PyTorch | graph/PyTorch |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in args.names:
        with tempfile.TemporaryDirectory() as folder:
            make(name, Path(folder))
            found: dict[str, Any] = {}
            for form in FORMS:
                place = f"{folder}/{'checkpoint' if form == 'checkpoint' else 'plain'}"
                found[form] = np.median([measured(name, form, place) for _ in range(3)])
        cells = " | ".join(f"{found[form]:.0f}" for form in FORMS)
        ratios = f"{found['blocks'] / found['torch']:.2f} | {found['graph'] / found['torch']:.2f}"
        print(f"| {name} | {cells} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
