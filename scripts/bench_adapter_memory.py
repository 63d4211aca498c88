"""Peak memory and time of training adapters beside the weights of a quantised language model, and
of one forward run of the same file on the same batch.

    python scripts/bench_adapter_memory.py [WEIGHTS ...] [--hidden 2048] [--layers 4] [--write]

The models are of the Llama form, as onnxruntime-genai writes them (`tests/language_models.py`),
with MatMulNBits ("packed") and with DequantizeLinear of int8 and int4. All products have adapters
of rank 8, trained with AdamW. Each row is the peak of resident memory of a process over its
imports, with loading: "forward" opens the file, "client" the step's train.onnx, both with
onnxruntime's default options on one thread; "trainer" is `Trainer` on the step's folder.
"checkpoint" is the client of a step with `checkpoint="auto"`. Writes
scripts/results/adapter_memory.md with --write.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import train, training_step  # noqa: E402  # runs from a checkout
from scripts.records import conditions, write_record  # noqa: E402
from tests.language_models import WEIGHTS, LanguageModel  # noqa: E402

BOUND = 1.5
TOKENS = (2, 32)
CHILD = """
import json, sys, time
import numpy as np, onnxruntime as ort
from safetensors.numpy import load_file
what, place = sys.argv[1:]
if what == "trainer":
    from onnxgrad.train import Trainer

def memory(key):
    line = next(x for x in open("/proc/self/status") if x.startswith(key))
    return int(line.split()[1]) * 1024 / 1e6

def opened(path):
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

base = memory("VmRSS")
batch = dict(np.load("batch.npz"))
if what == "forward":
    session, batch = opened(place), {k: v for k, v in batch.items() if k != "labels"}
    def run():
        session.run(None, batch)
elif what == "trainer":
    trainer = Trainer(place, 1e-4, threads=1)
    def run():
        trainer.step(batch)
else:
    manifest = json.load(open(place + "/manifest.json"))
    session = opened(place + "/" + manifest["train"])
    names = [o.name for o in session.get_outputs()]
    given, stored = dict(batch), load_file(place + "/state.safetensors")
    fed = [(role, one) for role, several in manifest["inputs"].items() for one in several]
    for role, one in fed:
        number = {"step": 1, "learning_rate": 1e-4}.get(role, 0)
        if role != "batch":
            filled = np.full(one["shape"], number, one["dtype"])
            given[one["name"]] = stored.get(one["name"], filled)
    def run():
        made = dict(zip(names, session.run(None, given)))
        given.update({one["name"]: made[one["next"]] for _, one in fed if one.get("next")})
loaded, times = memory("VmHWM") - base, []
for _ in range(4):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
found = {"loaded": loaded, "peak": memory("VmHWM") - base, "seconds": min(times)}
print(json.dumps(found))
"""


def make(folder: Path, model: LanguageModel) -> float:
    """Writes the model, the steps and the batch. Returns the megabytes of adapters and states."""
    proto = model.build()
    onnx.save(proto, folder / "model.onnx")
    batch = model.batch(*TOKENS)
    labels = np.roll(batch["input_ids"], -1, axis=1)
    np.savez(folder / "batch.npz", **batch, labels=labels)
    adapted = train.lora(proto, "*_proj*", rank=8)
    loss = train.CrossEntropy("logits", axis=-1, target="labels")
    for name, choice in (("step", None), ("checkpoint", "auto")):
        step = training_step(adapted, loss, train.AdamW(), "*.lora_*", checkpoint=choice)
        train.save_step(step, folder / name)
    kept = [fed for fed in step.manifest.inputs if fed.next is not None]
    return sum(4 * float(np.prod(fed.shape or ())) for fed in kept) / 1e6


def measured(folder: Path, what: str, place: str) -> dict[str, float]:
    """Returns megabytes over the imports, after loading and at the peak, and the seconds of a
    run.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD, what, place],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(weights: Any, hidden: int, layers: int) -> str:
    """Returns the row of one kind of weights."""
    model = LanguageModel(
        "llama", weights, hidden=hidden, layers=layers, width=hidden * 11 // 4,
        vocabulary=2 * hidden, heads=hidden // 128, kv_heads=max(1, hidden // 512), block=32,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        states = make(folder, model)
        size = (folder / "model.onnx").stat().st_size / 1e6
        forward = measured(folder, "forward", "model.onnx")
        cells = [weights, f"{size:.0f}", f"{states:.0f}", f"{forward['peak']:.0f}"]
        for what, place in (("client", "step"), ("client", "checkpoint"), ("trainer", "step")):
            found = measured(folder, what, place)
            ratio = (found["peak"] - states) / forward["peak"]
            cells += [
                f"{found['peak']:.0f} ({ratio:.2f})",
                f"{found['seconds'] / forward['seconds']:.1f}",
            ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table, and writes it with --write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", nargs="*", default=WEIGHTS, metavar="WEIGHTS")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--note", default="", help="a sentence for the record, such as on load")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    print(conditions() + "\n")
    lines = [
        f"`scripts/bench_adapter_memory.py`: hidden {args.hidden}, {args.layers} layers, "
        f"{TOKENS[0]} x {TOKENS[1]} tokens, one thread. {args.note}".strip(),
        "MB are peaks over the imports. In brackets: (peak - adapters and states) / forward, bound "
        f"{BOUND}. `time` is that of a step over that of a forward run.",
        "",
        "| weights | file MB | adapters and states | forward | client | time | "
        "client, checkpoint | time | trainer | time |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for weights in args.weights:
        lines.append(row(weights, args.hidden, args.layers))
        print(lines[-1], flush=True)
    if args.write:
        write_record("adapter_memory", lines)


if __name__ == "__main__":
    main()
