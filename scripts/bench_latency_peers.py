"""Latency of optimised models against their inputs: onnxgrad's presets and onnxsim, onnxslim,
onnxoptimizer, onnxscript.

`python scripts/bench_latency_peers.py [MODEL.onnx ...] [--peers-python PYTHON] [--out FILE.json]`;
without models, it takes models/ and the models fetched before. Each peer runs in its own process
with its defaults (`PYTHON` has the four installed; default: this Python). Then all results of one
model are measured in one run of `onnxgrad.verify.bench`: sessions in turns, CPU time and wall time,
ratios to the input. A result that differs from the input's is marked.

`--tune 60 --target-opset 23 --out scripts/results/latency_tuned.json` also measures `default` tuned
for a minute, at the opset of the file and at opset 23.

The same transformers at realistic widths, where overheads no longer dominate: export them with
`scripts/export_models.py bert gpt2 llama vit clip t5 whisper --wider 16 --out FOLDER`, then
measure `FOLDER/*.onnx --out scripts/results/latency_wide.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import bench  # noqa: E402
from onnxgrad.errors import OnnxgradError  # noqa: E402  # the script runs from a checkout
from onnxgrad.functions import optimize  # noqa: E402
from onnxgrad.verify import verify  # noqa: E402
from onnxgrad.verify.running.session import versions  # noqa: E402
from scripts.fetch_models import cache_folder  # noqa: E402
from scripts.records import commit  # noqa: E402

CONTROL = "input again"
PRESETS = ("default", "inference", "canonical")
TUNED = "onnxgrad tuned"
PEERS = {
    "onnxsim": "import onnxsim; out, ok = onnxsim.simplify(model)",
    "onnxslim": "import onnxslim; out = onnxslim.slim(model)",
    "onnxoptimizer": "import onnxoptimizer; out = onnxoptimizer.optimize(model)",
    "onnxscript": "import onnxscript.optimizer; out = onnxscript.optimizer.optimize(model)",
}
CHILD = """
import sys, time, onnx
model = onnx.load(sys.argv[1])
started = time.perf_counter()
{call}
seconds = time.perf_counter() - started
onnx.save(out, sys.argv[2])
print("seconds", seconds)
"""


def peer(python: str, name: str, model: Path, target: Path, timeout: float) -> str:
    """Runs one tool. Returns the error, or an empty text."""
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", CHILD.format(call=PEERS[name]), str(model), str(target)],
            capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"took over {timeout:g} s"
    if done.returncode or not target.is_file():
        lines = done.stderr.strip().splitlines()
        return f"exit {done.returncode}: {lines[-1][:200] if lines else ''}"
    return ""


def wanted(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the options of each onnxgrad result, by label."""
    found: dict[str, dict[str, Any]] = {f"onnxgrad {p}": {"preset": p} for p in PRESETS}
    if args.tune:
        tuned = {"tune": args.tune, "timeout": 600 + args.tune}
        found[TUNED] = tuned
        if args.target_opset:
            found[f"{TUNED}, opset {args.target_opset}"] = {
                **tuned, "target_opset": args.target_opset
            }  # fmt: skip
    return found


def ours(
    path: Path, folder: Path, args: argparse.Namespace
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the onnxgrad results and the errors, by label."""
    models, failed = {}, {}
    for label, options in wanted(args).items():
        target = folder / f"{label}.onnx"
        try:
            onnx.save(optimize(path, verify=False, **options), target)
            models[label] = str(target)
        except OnnxgradError as error:
            failed[label] = str(error)
    return models, failed


def measure(path: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measures one model with every tool. `input again` is a copy of the input, whose ratio shows
    the noise.
    """
    copy = folder / f"{CONTROL}.onnx"
    shutil.copy(path, copy)
    models: dict[str, Any] = {"input": str(path), CONTROL: str(copy)}
    own, failed = ours(path, folder, args)
    models.update(own)
    for name in PEERS:
        target = folder / f"{name}.onnx"
        wrong = peer(args.peers_python, name, path, target, timeout=120)
        if wrong:
            failed[name] = wrong
        else:
            models[name] = str(target)
    proofs = {}
    for label, target in models.items():
        if label not in ("input", CONTROL) and not args.no_verify:
            try:
                report = verify(path, target, seeds=(0,), weights="rounded", float64_budget=10.0)
                proofs[label] = "equal" if report.ok else str(report.worst)
            except OnnxgradError as error:
                proofs[label] = str(error)
    shared = {
        label: target
        for label, target in models.items()
        if not proofs.get(label, "").startswith("(")
    }
    nodes = {
        label: len(onnx.load(target, load_external_data=False).graph.node)
        for label, target in models.items()
    }
    try:
        report_of = bench(
            shared, seconds=args.seconds, rounds=args.rounds, threads=args.threads
        ).to_dict()
    except OnnxgradError as error:
        report_of = {"error": str(error)}
    return {"model": path.name, "nodes": nodes, "proofs": proofs, "failed": failed, **report_of}


def columns(args: argparse.Namespace) -> list[str]:
    """Returns the labels of the table's columns after the first two."""
    return [CONTROL, *wanted(args), *PEERS]


def line(row: dict[str, Any], args: argparse.Namespace) -> str:
    """Returns one row of the table: wall ratio (CPU ratio) per tool. A result that differs has a !,
    a tool that failed a -.
    """
    ratios = {t["name"]: t for t in row.get("timings", ())}
    cells = []
    for label in columns(args):
        if label in ratios:
            t = ratios[label]
            wrong = "" if row["proofs"].get(label, "equal") == "equal" else "!"
            cells.append(f"{t['wall_ratio']['median']:.2f} ({t['cpu_ratio']['median']:.2f}){wrong}")
        else:
            cells.append("-")
    start = f"{ratios['input']['wall']['median'] * 1e3:.2f}" if "input" in ratios else "?"
    return "| " + " | ".join([row["model"], start, *cells]) + " |"


def default_models() -> list[Path]:
    return sorted((ROOT / "models").glob("*.onnx")) + sorted(cache_folder("models").glob("*.onnx"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--out", type=Path, default=ROOT / "scripts/results/latency_peers.json")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time for each result")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--tune", type=float, default=0, metavar="S", help="also default tuned for S seconds"
    )
    parser.add_argument(
        "--target-opset", type=int, metavar="N", help="also tuned so that it may use this opset"
    )
    parser.add_argument("--no-verify", action="store_true", help="measure only")
    args = parser.parse_args()
    header = ["model", "input ms", *columns(args)]
    table = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    print("\n".join(table), flush=True)
    rows = []
    for path in args.models or default_models():
        with tempfile.TemporaryDirectory() as folder:
            row = measure(path, Path(folder), args)
        rows.append(row)
        table.append(line(row, args))
        print(table[-1], flush=True)
        write(args, rows, table)


def write(args: argparse.Namespace, rows: list[dict[str, Any]], table: list[str]) -> None:
    """Writes both files. Called after every model, so that an interrupted run keeps its rows."""
    code = (
        "import importlib.metadata as m; print(', '.join(p + ' ' + m.version(p) for p in "
        f"{tuple(PEERS)}))"
    )
    found = subprocess.run([args.peers_python, "-c", code], capture_output=True, text=True)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": args.threads,
        "onnxruntime": versions()["onnxruntime"],
        "peers": found.stdout.strip(),
        "commit": commit().removeprefix("commit "),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(
        json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    words = [
        "# Latency after / before\n",
        "Wall ratio (CPU ratio) to the input, of the fastest runs of every few rounds; sessions "
        "in turns.",
        "`!`: the result differs from the input's beyond its noise; `-`: the tool failed or its "
        "result does not run.",
        "; ".join(f"{k}: {v}" for k, v in about.items()) + "\n",
    ]
    args.out.with_suffix(".md").write_text("\n".join([*words, *table]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
