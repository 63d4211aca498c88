"""Optimises random models with every preset and the passes that no preset has: results must not
change.

    python scripts/sweep_rewrites.py --minutes 10 --seed 0

Each model runs in onnxruntime on zeros, ties and repeated values. A model whose results or
interface differ, that does not run, or that crashes onnxgrad is reduced and saved. Prints the
counts; exit code 1 if something failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

from onnx import ModelProto

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.sweeping.command import Tally, command, sweep_models  # noqa: E402  # runs from a checkout
from scripts.sweeping.models import random_feeds, random_model  # noqa: E402
from scripts.sweeping.rewrites import SETTINGS, Failure, Judge  # noqa: E402
from scripts.sweeping.shrink import save_failure, shrink  # noqa: E402

# settings per model: `default` and others at random
_SETTINGS_EACH = 3


def sweep(
    seed: int, *, models: int, minutes: float = 1e9, save: Path | None = None
) -> tuple[Counter[str], list[str]]:
    """Checks up to `models` models within `minutes`. Returns counts and a line per failure."""

    def judge(number: int, tally: Tally) -> None:
        rng = Random(f"{seed}/{number}")
        model = random_model(rng)
        judged = Judge(model, random_feeds(rng, model))
        if not judged.cases:
            tally.counts["models that never run"] += 1
            return
        others = rng.sample([s for s in SETTINGS if s != "default"], _SETTINGS_EACH - 1)
        for setting in ["default", *others]:
            tally.counts["rewritings"] += 1
            found = judged.failure(setting)
            if found is None:
                continue
            tally.counts[f"failures: {found.kind}"] += 1
            line = tally.fail(f"model {number}, {setting}", f"{found.kind}: {found.words}")
            if save is not None:
                _save(save, f"{seed}_{number}_{setting}", model, found, line)

    return sweep_models(judge, seed, models, minutes)


def _save(folder: Path, name: str, model: ModelProto, found: Failure, words: str) -> None:
    def fails(smaller: ModelProto) -> bool:
        feeds = {v.name: found.feeds[v.name] for v in smaller.graph.input if v.name in found.feeds}
        judge = Judge(smaller, [feeds])
        again = judge.failure(found.setting) if judge.cases else None
        return again is not None and again.kind == found.kind

    smallest = shrink(model, fails)
    feeds = {v.name: found.feeds[v.name] for v in smallest.graph.input if v.name in found.feeds}
    print(
        f"  {save_failure(folder, name, smallest, feeds, words)}: {len(smallest.graph.node)} nodes",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(command(sweep, __doc__))
