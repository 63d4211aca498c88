"""Peak memory and time of gradient graphs with and without checkpointing, in stock onnxruntime at
default options.

Each run is a fresh process; plain and checkpointed runs alternate, and medians are printed. `python
scripts/bench_checkpoint.py [MODEL.onnx]` uses `checkpoint="auto"` for a model. Without a model, it
measures the chain of 64 tanh layers of 4M floats from the specification.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from records import conditions

from onnxgrad import gradient

CHILD = """
import json, sys, time
import numpy as np, onnxruntime as ort
path, feeds_path, outputs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.log_severity_level = 3
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
feeds = dict(np.load(feeds_path))
def memory(field):
    return int(next(l for l in open("/proc/self/status") if l.startswith(field)).split()[1])
with open("/proc/self/clear_refs", "w") as f:
    f.write("5")  # forget the peak that loading reached
base = memory("VmRSS")
started = time.perf_counter()
result = session.run(outputs, feeds)
seconds = time.perf_counter() - started
peak = memory("VmHWM")
again = time.perf_counter()
session.run(outputs, feeds)
seconds = min(seconds, time.perf_counter() - again)
sums = [float(np.abs(r.astype(np.float64)).sum()) for r in result]
print(json.dumps({"mb": (peak - base) / 1024, "seconds": seconds, "sums": sums}))
"""


def chain(layers: int, size: int) -> onnx.ModelProto:
    """x -> tanh(tanh(... x)), the sum of squares of the result as loss."""
    nodes = " ".join(f"h{i + 1} = Tanh (h{i})" for i in range(layers))
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[{size}] h0) => (float loss) {{
        {nodes} q = Mul (h{layers}, h{layers}) loss = ReduceSum <keepdims = 0> (q) }}"""
    return onnx.parser.parse_model(text)


def measure(path: Path, feeds: Path, outputs: list[str]) -> dict:
    """Returns the peak above the session's, seconds and checksums of a run in a fresh process."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(feeds), json.dumps(outputs)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def main() -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a model whose only scalar output is its loss")
    parser.add_argument("--inputs", help="npz with keys in:NAME; default: beside the model")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.model:
        model = onnx.load(arguments.model)
        name = Path(arguments.model).parent.name + "/" + Path(arguments.model).stem
        wrt, target, choice = "params", "loss", "auto"
        stored = np.load(arguments.inputs or Path(arguments.model).with_suffix(".npz"))
        feeds = {k[3:]: stored[k] for k in stored.files if k.startswith("in:")}
    else:
        model, name, wrt, target = chain(64, 4 << 20), "64 tanh layers of 4M floats", None, None
        choice = "auto"
        feeds = {"h0": np.random.default_rng(0).standard_normal(4 << 20).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "feeds.npz", **feeds)
        paths = {}
        for kind, checkpoint in (("plain", None), ("checkpointed", choice)):
            graph = gradient(model, wrt, target, checkpoint=checkpoint)
            paths[kind] = Path(folder) / f"{kind}.onnx"
            onnx.save(graph, paths[kind])
            outputs = [v.name for v in graph.graph.output if v.name.endswith("_grad")]
        found: dict[str, list[dict]] = {"plain": [], "checkpointed": []}
        for _ in range(arguments.runs):
            for kind, path in paths.items():
                found[kind].append(measure(path, Path(folder) / "feeds.npz", outputs))
    mb = {k: statistics.median(r["mb"] for r in runs) for k, runs in found.items()}
    seconds = {k: statistics.median(r["seconds"] for r in runs) for k, runs in found.items()}
    same = np.allclose(found["plain"][0]["sums"], found["checkpointed"][0]["sums"], rtol=1e-5)
    print(conditions())
    print(
        f"{name}: peak {mb['plain']:.0f} MB -> {mb['checkpointed']:.0f} MB, "
        f"ratio {mb['checkpointed'] / mb['plain']:.2f}; "
        f"time ratio {seconds['checkpointed'] / seconds['plain']:.2f}; results "
        f"{'equal' if same else 'DIFFER'}"
    )


if __name__ == "__main__":
    main()
