"""How many models of batch 1 open, how, and how fast: `python scripts/bench_open_batch.py [--write]
[--rounds N] [--dynamic] [MODEL ...]`.

Each model (by default those of models/, symbolic batches set to 1, other symbols to 16, or left
with --dynamic) is opened and proved row by row.
Then one run of the opened model at batch 8 is measured against eight runs of the model: CPU time,
one thread, in turns, the fastest of each.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import InputError  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.jobs.fixed_dims import fixed  # noqa: E402
from onnxgrad.jobs.open_batch import OpenedModel, open_batch  # noqa: E402
from onnxgrad.jobs.outcome import Hooks  # noqa: E402
from onnxgrad.jobs.surgery_declarations import OpenBatchOptions  # noqa: E402
from onnxgrad.verify import feeds_for, open_session  # noqa: E402
from onnxgrad.verify.feeds.dims import roles  # noqa: E402
from scripts.records import write_record  # noqa: E402

BATCH = 8
OTHER = 16  # of other symbolic sizes


def models(names: list[str], dynamic: bool) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Each model with a batch of 1; other symbolic sizes are set unless `dynamic`."""
    paths = [Path(n) for n in names] or sorted((ROOT / "models").glob("*.onnx"))
    for path in paths:
        model = to_proto(load(path), weights=True)
        sizes = {n: 1 if role == "batch" else OTHER for n, role in roles(model.graph).items()}
        yield path.stem, fixed(model, {n: d for n, d in sizes.items() if d == 1 or not dynamic})


def speed(model: onnx.ModelProto, done: OpenedModel, rounds: int) -> float:
    """CPU time of eight single runs over that of one run of eight rows."""
    original, opened = to_proto(load(model)), to_proto(done.program, weights=True)
    dims = dict.fromkeys(roles(original.graph), OTHER)
    rows = [feeds_for(original, seed=seed, dims=dims) for seed in range(BATCH)]
    stacked = {
        n: np.concatenate([row[n] for row in rows], done.opened.inputs[n])
        if n in done.opened.inputs
        else v
        for n, v in rows[0].items()
    }
    one, many = open_session(original), open_session(opened)
    best = [math.inf, math.inf]
    for _ in range(rounds):
        best[0] = min(best[0], *(cpu for _, cpu in one.time(rows[0], 4)))
        best[1] = min(best[1], *(cpu for _, cpu in many.time(stacked, 2)))
    return BATCH * best[0] / best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--dynamic", action="store_true", help="other symbolic sizes stay")
    parser.add_argument("--write", action="store_true", help="write results/open_batch.md")
    args = parser.parse_args()
    lines, ratios, opened, proved = [], list[float](), 0, 0
    head = f"| model | proof | in place | own axis | once per row | {BATCH} runs / batch {BATCH} |"
    lines += [head, "|---|---|---|---|---|---|"]
    for name, model in models(args.model, args.dynamic):
        try:
            done = open_batch(model, OpenBatchOptions(), Hooks())
        except InputError as error:
            lines.append(f"| {name} | refused: {str(error).replace('|', '/')[:120]} | | | | |")
            print(lines[-1], flush=True)
            continue
        counts = [sum(c.values()) for c in (done.opened.shifted, done.opened.scanned)]
        ratio = speed(model, done, args.rounds)
        ratios.append(ratio)
        opened += not counts[1]
        proved += done.ok
        verdict = "none" if done.report is None else done.report.verdict
        lines.append(
            f"| {name} | {verdict} | {done.opened.in_place} | {counts[0]} | {counts[1]} | "
            f"{ratio:.2f} |"
        )
        print(lines[-1], flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
    total = len(lines) - 2
    lines += [
        "",
        f"Opened without a Scan: {opened} of {total}; proved: {proved}. Geometric mean of "
        f"{BATCH} single runs / one run at batch {BATCH}: {mean:.2f}. CPU time, one thread.",
    ]
    print(lines[-1])
    if args.write:
        print(write_record("open_batch", lines))


if __name__ == "__main__":
    main()
