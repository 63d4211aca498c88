"""Random models with right gradients through `check_gradient`: a "differs" is a false alarm.

    python scripts/sweep_check_grad.py --minutes 10 --seed 0

The models are those of sweep_gradients.py, whose gradients are compared with differences there.
Prints the verdicts and how many values were judged; exit code 1 if there was a false alarm or a
crash.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import check_gradient  # noqa: E402  # runs from a checkout
from onnxgrad.errors import OnnxgradError  # noqa: E402
from scripts.sweep_gradients import drawn  # noqa: E402
from scripts.sweeping.command import command  # noqa: E402


def sweep(
    seed: int, *, models: int, minutes: float = 1e9, save: Path | None = None
) -> tuple[Counter[str], list[str]]:
    """Up to `models` models within `minutes`: the counts, and one line for each failure."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    deadline = time.monotonic() + 60 * minutes
    for number in range(models):
        if time.monotonic() > deadline:
            break
        case = drawn(seed, number)
        counts["models"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report = check_gradient(
                    case.fixed,
                    case.wrt,
                    case.targets,
                    inputs=case.feeds,
                    checkpoint=case.checkpoint,
                )
        except OnnxgradError as error:
            counts[f"ended by {type(error).__name__}"] += 1
            continue
        except Exception as error:  # noqa: BLE001  # a crash is a finding
            failures.append(f"seed {seed}, model {number}: crash: {type(error).__name__}: {error}")
            print(failures[-1], flush=True)
            continue
        counts[report.verdict] += 1
        counts["values"] += len(report.values)
        counts["values judged"] += sum(v.judged for v in report.values)
        if report.verdict == "differs":
            words = str(report).replace("\n", "; ")[:300]
            failures.append(f"seed {seed}, model {number}: {words}")
            print(failures[-1], flush=True)
    counts["failures"] = len(failures)
    return counts, failures


if __name__ == "__main__":
    sys.exit(command(sweep, __doc__))
