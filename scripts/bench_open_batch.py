"""How many models of batch 1 `open-batch` opens, by which rules, and their speed: `python
scripts/bench_open_batch.py [--write] [--rounds N] [--dynamic] [--batch N] [MODEL ...]`.

Each model (default: those of models/) is opened and proved row by row. Symbolic batches are set to
1; other symbols are set to 16, or stay symbolic with --dynamic. With --batch, the models have that
batch, and every input whose first axis has that size is opened. Then one run of the opened model at
batch 8 is compared with eight runs of the model: CPU time, one thread, in turns, the fastest of
each.
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
from onnxgrad.jobs.hooks import Hooks  # noqa: E402
from onnxgrad.jobs.open_batch import OpenedModel, open_batch  # noqa: E402
from onnxgrad.jobs.row_declarations import OpenBatchOptions  # noqa: E402
from onnxgrad.jobs.surgery.fixed_dims import fixed  # noqa: E402
from onnxgrad.verify import feeds_for, open_session  # noqa: E402
from onnxgrad.verify.feeds.dims import roles, shape_of  # noqa: E402
from scripts.records import write_record  # noqa: E402

BATCH = 8
OTHER = 16  # of other symbolic sizes
FIXED = {"mamba": 6}  # sizes at which TorchScript unrolled a network: it runs at no other


def models(
    names: list[str], dynamic: bool, batch: int = 1
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields each model with a batch of 1; other symbolic sizes are set unless `dynamic`.

    With another `batch`, models are not changed.
    """
    paths = [Path(n) for n in names] or sorted((ROOT / "models").glob("*.onnx"))
    for path in paths:
        model = to_proto(load(path), weights=True)
        if batch > 1:
            yield path.stem, model
            continue
        other = FIXED.get(path.stem.partition(".")[0], OTHER)
        sizes = {n: 1 if role == "batch" else other for n, role in roles(model.graph).items()}
        yield path.stem, fixed(model, {n: d for n, d in sizes.items() if d == 1 or not dynamic})


def speed(model: onnx.ModelProto, done: OpenedModel, rounds: int) -> float:
    """Returns the CPU time of eight runs of one row over that of one run of eight rows."""
    original, opened = to_proto(load(model)), to_proto(done.program, weights=True)
    dims = dict.fromkeys(roles(original.graph), OTHER)
    runs = BATCH // done.opened.count
    rows = [feeds_for(original, seed=seed, dims=dims) for seed in range(runs)]
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
    return runs * best[0] / best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--dynamic", action="store_true", help="other symbolic sizes stay")
    parser.add_argument("--batch", type=int, default=1, help="the models have this batch")
    parser.add_argument("--write", action="store_true", help="write results/open_batch[_of_N].md")
    args = parser.parse_args()
    lines, ratios, opened, proved = [], list[float](), 0, 0
    runs = BATCH // args.batch
    head = f"| model | proof | in place | own axis | once per row | {runs} runs / batch {BATCH} |"
    lines += [head, "|---|---|---|---|---|---|"]
    for name, model in models(args.model, args.dynamic, args.batch):
        inputs = [
            v.name
            for v in model.graph.input
            if args.batch > 1 and (shape_of(v.name, v.type.tensor_type) or [0])[0] == args.batch
        ]
        try:
            options = OpenBatchOptions(inputs=inputs or None, batch=args.batch)
            done = open_batch(model, options, Hooks())
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
        f"{runs} runs of {args.batch} / one at batch {BATCH}: {mean:.2f}. CPU time, one thread.",
    ]
    print(lines[-1])
    if args.write:
        print(
            write_record("open_batch" if args.batch == 1 else f"open_batch_of_{args.batch}", lines)
        )


if __name__ == "__main__":
    main()
