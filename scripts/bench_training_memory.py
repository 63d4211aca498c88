"""Peak memory of training above the imports: with weights inside the model file, with a table of
2.2 GB beside it, and while saving, restoring and writing a step.

    python scripts/bench_training_memory.py [--megabytes 235] [--table 2200]

Each row is measured in its own process. `over` is the peak of resident memory minus the memory
after the imports. `bound` is 1.1 times (all weights once, and the trained ones once more for the
gradient and for each state of the optimiser), and 2.6 GB for the table. Saving, restoring and
exporting are compared with training in the same process. Writes scripts/results/training_memory.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx.external_data_helper import set_external_data

WIDTH = 2048
Row = tuple[str, float, float]
# code of each row: prints nothing; PEAK(NAME) notes the peak since the last one
PRELUDE = """
import json, sys, warnings
import numpy, onnx, onnxruntime
import onnxgrad.cli.commands.fit, onnxgrad.cli.app
from onnxgrad import Trainer, train, training_step
from onnxgrad.cli.app import main

def now(key):
    line = next(x for x in open("/proc/self/status") if x.startswith(key))
    return int(line.split()[1]) * 1024 / 1e6

def note(name):
    found[name] = now("VmHWM") - base
    open("/proc/self/clear_refs", "w").write("5")

def trained(trainer):
    trainer.fit("data.npz", epochs=2, batch_size=16)
    return trainer

warnings.simplefilter("ignore")
adamw = "adamw{lr=1e-4}"
found, base = {}, now("VmRSS")
"""
FIT = """
words = "fit model.onnx --loss cross_entropy --data data.npz --batch-size 16 --epochs 2"
code = main([*words.split(), *OPTIONS, "-o", "out.onnx", "--threads", "1", "-q"])
assert code == 0
note("fit")
"""
TRAINER = """
trainer = trained(Trainer(training_step("model.onnx", "cross_entropy", adamw), threads=1))
note("training")
trainer.save("saved.safetensors")
note("save")
trainer.restore("saved.safetensors")
note("restore")
trainer.export("model.onnx", "exported.onnx")
note("export")
"""
STEP = """
step = training_step("model.onnx", "cross_entropy", adamw)
note("training_step")
trained(Trainer(step, threads=1))
note("training beside the step")
train.save_step(step, "step")
note("save_step")
trained(Trainer("step", threads=1))
note("training from the folder, beside the step")
del step
trained(Trainer("step", threads=1))
note("training from the folder")
"""


def write_inline(folder: Path, megabytes: int) -> float:
    """Writes a network of square products with its weights inside. Returns their megabytes."""
    rng = np.random.default_rng(0)
    layers = max(1, round(megabytes * 1e6 / (4 * WIDTH * WIDTH)))
    lines, last = [], "x"
    weights = {"wo": (WIDTH, 3), "bo": (3,)}
    for i in range(layers):
        lines.append(f"a{i} = Gemm ({last}, w{i}, b{i})  h{i} = Relu (a{i})")
        last = f"h{i}"
        weights |= {f"w{i}": (WIDTH, WIDTH), f"b{i}": (WIDTH,)}
    body = " ".join([*lines, f"logits = Gemm ({last}, wo, bo)"])
    model = parsed(f"g (float[N,{WIDTH}] x) => (float[N,3] logits) {{ {body} }}")
    for name, shape in weights.items():
        array = rng.standard_normal(shape, np.float32) / np.float32(WIDTH**0.5)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, folder / "model.onnx")
    x, labels = rng.standard_normal((64, WIDTH), np.float32), rng.integers(0, 3, 64)
    np.savez(folder / "data.npz", x=x, labels=labels)
    return float(sum(4 * np.prod(shape) for shape in weights.values()) / 1e6)


def write_table(folder: Path, rows: int) -> None:
    """Writes a model with a frozen table (4 kB a row, in a sparse file beside it) and a head of
    3,003 numbers, and its data.
    """
    model = parsed(
        "g (int64[N,4] x) => (float[N,3] logits) "
        "{ e = Gather (table, x)  m = ReduceMean <keepdims=0> (e, ax)  logits = Gemm (m, w, b) }"
    )
    head = {"ax": np.array([1]), "w": np.ones((1000, 3), np.float32), "b": np.zeros(3, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, k) for k, a in head.items())
    table = model.graph.initializer.add(name="table", data_type=1, dims=[rows, 1000])
    table.raw_data = b"\0"
    set_external_data(table, "table.data", 0, rows * 4000)
    table.ClearField("raw_data")
    onnx.save(model, folder / "model.onnx")
    with open(folder / "table.data", "wb") as file:
        file.write(np.ones(1000, np.float32).tobytes())
        file.truncate(rows * 4000)
    np.savez(folder / "data.npz", x=np.arange(64).reshape(16, 4) % 6, labels=np.zeros(16, int))


def parsed(text: str) -> onnx.ModelProto:
    """Returns the model of a text in ONNX's syntax."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')


def measured(folder: Path, code: str) -> dict[str, float]:
    """Returns megabytes above the imports, by name."""
    done = subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}{code}\nprint(json.dumps(found))"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(megabytes: int, table: int) -> list[Row]:
    """Returns names, megabytes above the imports, and their bounds."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = write_inline(folder, megabytes)
        bound = 1.1 * 4 * weights
        found.append(("fit -o", measured(folder, FIT.replace("OPTIONS", "[]"))["fit"], bound))
        own = measured(folder, TRAINER)
        found.append(("Trainer: training", own["training"], bound))
        found += [
            (f"Trainer: {k}", own[k], 1.05 * own["training"]) for k in ("save", "restore", "export")
        ]
        for key, value in measured(folder, STEP).items():
            found.append((key, value, bound if "training " in key else 1.1 * 2 * weights))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder, table * 250)
        own = measured(folder, FIT.replace("OPTIONS", "['--wrt', 'w', '--wrt', 'b']"))
        found.append((f"fit -o, a frozen table of {table} MB", own["fit"], 2600))
    return found


def main() -> None:
    """Measures and writes the record."""
    from records import write_record  # a test imports this module from another folder

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=235, help="of weights in the file")
    parser.add_argument("--table", type=int, default=2200, help="megabytes of the table")
    args = parser.parse_args()
    found = rows(args.megabytes, args.table)
    lines = [
        f"`scripts/bench_training_memory.py`: {args.megabytes} MB of weights, AdamW. Bounds:",
        "1.1 times (all weights once, and trained ones once more for the gradient and each state),",
        "1.05 times training for saving, restoring and exporting, 2.6 GB for the table.", "",
        "| what | MB over the imports | bound | ratio |", "|---|---|---|---|",
        *(f"| {k} | {v:.0f} | {b:.0f} | {v / b:.2f} |" for k, v, b in found),
    ]  # fmt: skip
    print("\n".join(lines))
    write_record("training_memory", lines)


if __name__ == "__main__":
    main()
