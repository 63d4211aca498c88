"""Runs `check_gradient` on random models with right gradients: "differs" is a false alarm.

    python scripts/sweep_check_grad.py --minutes 10 --seed 0

The models are those of sweep_gradients.py, whose gradients are compared with differences there.
Prints the verdicts and how many values were judged; exit code 1 if there was a false alarm or a
crash.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import check_gradient  # noqa: E402  # runs from a checkout
from onnxgrad.errors import OnnxgradError  # noqa: E402
from scripts.sweep_gradients import drawn  # noqa: E402
from scripts.sweeping.command import Tally, command, sweep_models  # noqa: E402


def sweep(
    seed: int, *, models: int, minutes: float = 1e9, save: Path | None = None
) -> tuple[Counter[str], list[str]]:
    """Checks up to `models` models within `minutes`. Returns counts and a line per failure."""

    def judge(number: int, tally: Tally) -> None:
        case, counts = drawn(seed, number), tally.counts
        try:
            report = check_gradient(
                case.fixed, case.wrt, case.targets, inputs=case.feeds, checkpoint=case.checkpoint
            )
        except OnnxgradError as error:
            counts[f"ended by {type(error).__name__}"] += 1
            return
        counts[report.verdict] += 1
        counts["values"] += len(report.values)
        counts["values judged"] += sum(v.judged for v in report.values)
        if report.verdict == "differs":
            tally.fail(f"model {number}", str(report).replace("\n", "; ")[:300])

    return sweep_models(judge, seed, models, minutes)


if __name__ == "__main__":
    sys.exit(command(sweep, __doc__))
