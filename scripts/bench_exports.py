"""Nodes and latency of TorchScript exports with open sizes, optimised by onnxgrad and by others.

`python scripts/bench_exports.py --export [NAME ...]` writes the ten networks of
`scripts/exporting/open_sizes.py` below `$ONNXGRAD_CACHE` (it needs torch, transformers, diffusers
and onnx). `python scripts/bench_exports.py [NAME ...] [--peers-python PYTHON] [--write]` measures
them and needs none of these packages. `PYTHON` has onnxslim and onnxsim installed.

Nodes are counted without Constants. Each result is compared with the export's at three sizes, with
onnxruntime's graph optimisations off. Latency is CPU time at onnxruntime's default level on both
sides, one thread, all files in turns. `basic` and `extended` are the files that onnxruntime writes
at these levels; `again` is a copy of the export, whose ratio shows the noise.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

# those of exporting/open_sizes.py, which this script imports only for --export
NAMES = (
    *("bert_eager", "bert_sdpa", "roberta", "llama", "mistral", "qwen3", "gpt2", "clip", "t5"),
    "sd3",
)
PEERS = ("onnxslim", "onnxsim")
LEVELS = ("basic", "extended")
OURS = {"optimize": {}, "opset 23": {"target_opset": 23}}
AGAIN = "again"
# a file is slower if its ratio exceeds this in most repeats
SLOWER = 1.03


def folder_of_exports() -> Path:
    """Returns the folder of the exports, outside the repository."""
    from scripts.fetch_models import cache_folder

    return cache_folder("open_sizes")


def export(names: list[str]) -> None:
    """Writes the networks."""
    import warnings

    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    warnings.simplefilter("ignore")
    from exporting.open_sizes import export_open, networks

    assert tuple(networks()) == NAMES
    folder = folder_of_exports()
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = export_open(name, folder)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


def cases(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the inputs (`in`) and PyTorch's results (`out`) for each size, such as `2x6`."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            size, kind, name = key.split(":")
            found.setdefault(size, {"in": {}, "out": {}})[kind][name] = arrays[key]
    return found


def made(path: Path, folder: Path, python: str) -> dict[str, Path]:
    """Returns the file of each tool, by label. A tool that fails is reported on stderr."""
    import onnxgrad
    from scripts.bench_latency_peers import peer

    found = {label: folder / f"{label}.onnx" for label in ("export", *OURS, *PEERS, *LEVELS, AGAIN)}
    for label in ("export", AGAIN):
        shutil.copy(path, found[label])
    for label, options in OURS.items():
        onnx.save(onnxgrad.optimize(path, verify=False, **options), found[label])
    for label in PEERS:
        wrong = peer(python, label, path, found[label], timeout=300)
        if wrong:
            print(f"{path.stem}: {label}: {wrong}", file=sys.stderr)
            del found[label]
    for label in LEVELS:
        at_level(path, f"ENABLE_{label.upper()}", found[label])
    return found


def at_level(path: Path, level: str, target: Path | None = None) -> Any:
    """Returns a session of one thread; onnxruntime writes the optimised model to `target`."""
    from onnxruntime import GraphOptimizationLevel
    from sessions import session

    settings = {} if target is None else {"optimized_model_filepath": str(target)}
    chosen = getattr(GraphOptimizationLevel, f"ORT_{level}")
    return session(path, graph_optimization_level=chosen, **settings)


def worst_difference(
    files: dict[str, Path], sizes: dict[str, dict[str, dict[str, Any]]]
) -> dict[str, float]:
    """Returns the largest difference of each file's results, as deployed, from the export's.

    It is relative to the export's largest value. `torch` compares the export with PyTorch, where
    the mask has 1: what an empty row of attention gives differs between exporters.
    """
    worst = dict.fromkeys(("torch", *files), 0.0)
    plain = at_level(files["export"], "DISABLE_ALL")
    for case in sizes.values():
        if not case["out"]:
            continue
        expected = plain.run(None, _of(plain, case["in"]))
        found = {"torch": [*case["out"].values()]}
        for label, path in files.items():
            other = at_level(path, "ENABLE_ALL")
            found[label] = other.run(None, _of(other, case["in"]))
        for label, results in found.items():
            for y, z in zip(expected, results, strict=True):
                assert y.shape == z.shape, (label, y.shape, z.shape)
                y, z = y[_compared(label, case["in"], y)], z[_compared(label, case["in"], y)]
                finite = np.isfinite(y)
                assert finite.any(), f"{label}: no result is a finite number"
                assert (finite == np.isfinite(z)).all(), f"{label}: NaN or Inf in other places"
                y, z, largest = y[finite], z[finite], np.abs(y[finite]).max()
                assert largest > 0, f"{label}: a result is 0 throughout"
                worst[label] = max(worst[label], float(np.abs(y - z).max() / largest))
    return worst


def _compared(label: str, feeds: dict[str, Any], y: Any) -> Any:
    mask = feeds.get("attention_mask")
    return mask == 1 if label == "torch" and mask is not None and mask.shape == y.shape[:2] else ...


def _of(opened: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    return {v.name: feeds[v.name] for v in opened.get_inputs()}


def counted(path: Path) -> tuple[int, int]:
    """Returns the numbers of nodes without Constants, and of Attention nodes."""
    operators = [n.op_type for n in onnx.load(path).graph.node if n.op_type != "Constant"]
    return len(operators), operators.count("Attention")


def ratios(files: dict[str, Path], feeds: dict[str, Any], args: argparse.Namespace) -> list[Any]:
    """Returns the CPU milliseconds of the export, and the ratio of each file in each repeat."""
    from onnxgrad import bench

    milliseconds, found = [], {label: list[float]() for label in files}
    opened = at_level(files["export"], "ENABLE_ALL")
    for _ in range(args.repeats):
        report = bench(
            {label: str(path) for label, path in files.items()}, inputs=_of(opened, feeds),
            seconds=args.seconds, rounds=args.rounds, threads=1,
        )  # fmt: skip
        milliseconds.append(report.timings[0].cpu.median * 1e3)
        for t in report.timings:
            found[t.name].append(t.cpu_ratio.median)
    return [statistics.median(milliseconds), found]


def is_slower(repeats: list[float]) -> bool:
    """Whether a file is slower than the export in most repeats."""
    return sum(r > SLOWER for r in repeats) * 2 > len(repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*NAMES], metavar="NAME")
    parser.add_argument("--export", action="store_true", help="write the networks with PyTorch")
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each file and repeat")
    parser.add_argument("--write", action="store_true", help="write results/exports.md")
    args = parser.parse_args()
    if args.export:
        export(args.names)
        return
    measure(args)


def measure(args: argparse.Namespace) -> None:
    """Prints both tables, and records them."""
    import logging

    from scripts.records import write_record

    logging.disable(logging.WARNING)
    labels = [*OURS, *PEERS, *LEVELS, AGAIN]
    nodes = ["| network | export | " + " | ".join([*OURS, *PEERS])
             + " | Attention | worst difference | of the export from PyTorch |",
             "|---" * (len(OURS) + len(PEERS) + 5) + "|"]  # fmt: skip
    times = [f"| network | batch | export, ms | {' | '.join(labels)} |",
             "|---" * (len(labels) + 3) + "|"]  # fmt: skip
    every: dict[str, list[float]] = {label: [] for label in labels}
    slower: list[str] = []
    for name in args.names:
        path = folder_of_exports() / f"{name}.onnx"
        sizes = cases(path.with_suffix(".npz"))
        with tempfile.TemporaryDirectory() as folder:
            files = made(path, Path(folder), args.peers_python)
            worst = worst_difference(files, sizes)
            counts = [counted(files[k])[0] if k in files else "fails" for k in (*OURS, *PEERS)]
            nodes.append(
                f"| {name} | {counted(path)[0]} | {' | '.join(map(str, counts))} | "
                f"{counted(files['opset 23'])[1]} | {max(worst[k] for k in OURS):.1e} | "
                f"{worst['torch']:.1e} |"
            )
            print(nodes[-1], flush=True)
            for size, case in sizes.items():
                if case["out"]:
                    continue
                milliseconds, found = ratios(files, case["in"], args)
                cells = []
                for label in labels:
                    repeats = found.get(label, [])
                    cells.append(f"{statistics.median(repeats):.3f}" if repeats else "-")
                    if repeats:
                        every[label].append(statistics.median(repeats))
                    if label in OURS and is_slower(repeats):
                        slower.append(f"{name} at batch {size.split('x')[0]} ({label})")
                times.append(
                    f"| {name} | {size.split('x')[0]} | {milliseconds:.1f} | {' | '.join(cells)} |"
                )
                print(times[-1], flush=True)
    means = [f"{statistics.geometric_mean(v):.3f}" if v else "-" for v in every.values()]
    times.append(f"| geometric mean | | | {' | '.join(means)} |")
    lines = [
        "TorchScript exports with open sizes, two layers, hidden 256 "
        "(`scripts/bench_exports.py`). Nodes without Constants; differences at three sizes, over "
        "the largest value.",
        "", *nodes, "",
        f"CPU time over the export's at length 128, one thread, in turns, median of {args.repeats} "
        "repeats; onnxruntime's default level on both sides.",
        "", *times, "",
        f"Slower than the export by more than {SLOWER - 1:.0%} in most repeats: "
        f"{', '.join(slower) or 'none'}.",
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
    ]  # fmt: skip
    print("\n".join(lines[-len(times) - 6 :]))
    if args.write:
        print(write_record("exports", lines))


if __name__ == "__main__":
    main()
