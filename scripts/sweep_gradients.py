"""Differentiates random models by every input and weight, at opsets 13 to 25, some with
checkpointing.

    python scripts/sweep_gradients.py --minutes 10 --seed 0

Each adjoint is found by its name and compared with central differences in float64, as the gradient
graph computes it in onnxruntime and in the float64 reference. A model with a wrong gradient, a
graph that does not run or a crash is reduced and saved. Prints the counts; exit code 1 if something
failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

from onnx import ModelProto

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import OnnxgradError  # noqa: E402  # runs from a checkout
from onnxgrad.verify.running.child_process import RunFailed  # noqa: E402
from onnxgrad.verify.running.session import run  # noqa: E402
from scripts.sweeping.command import Tally, command, sweep_models  # noqa: E402
from scripts.sweeping.shrink import save_failure, shrink  # noqa: E402
from tests.grad.judge import check_differences  # noqa: E402
from tests.grad.random_models import OPSETS, Drawn, FromRandom, model  # noqa: E402


def drawn(seed: int, number: int) -> Drawn:
    """Returns model `number` of a sweep, differentiated by all differentiable values."""
    rng = Random(f"{seed}/{number}")
    found = model(FromRandom(rng), opset=rng.choice(OPSETS))
    return replace(found, wrt=list(dict.fromkeys([*found.wrt, *found.weights])))


def failure(case: Drawn) -> str | None:
    """Returns the fault of the gradient in one line, or None if it is right or the model itself
    does not run.
    """
    try:
        check_differences(case, checkpoint=case.checkpoint)
    except (AssertionError, OnnxgradError) as error:
        words = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  # a crash is a finding
        words = f"crash: {type(error).__name__}: {error}"
    else:
        return None
    try:
        run(case.fixed, case.feeds)
    except RunFailed:
        return None  # onnxruntime cannot run the model itself
    return words.splitlines()[0][:300]


def kind(words: str) -> str:
    """Returns the kind of a failure, which must stay the same while it is reduced."""
    return words.split(",")[0].split(":")[0] if words.startswith("AssertionError") else words[:60]


def sweep(
    seed: int, *, models: int, minutes: float = 1e9, save: Path | None = None
) -> tuple[Counter[str], list[str]]:
    """Checks up to `models` models within `minutes`. Returns counts and a line per failure."""

    def judge(number: int, tally: Tally) -> None:
        case = drawn(seed, number)
        tally.counts["adjoints requested"] += len(case.wrt)
        tally.counts["with checkpointing"] += case.checkpoint is not None
        words = failure(case)
        if words is None:
            return
        tally.fail(f"model {number}, opset {case.fixed.opset_import[0].version}", words)
        if save is not None:
            _save(save, f"{seed}_{number}", case, words)

    return sweep_models(judge, seed, models, minutes)


def _save(folder: Path, name: str, case: Drawn, words: str) -> None:
    def smaller(proto: ModelProto) -> Drawn:
        """Returns the case of a reduced model: the targets, requests and feeds that it still
        has.
        """
        there = {v.name for v in (*proto.graph.input, *proto.graph.initializer)}
        there |= {o for n in proto.graph.node for o in n.output}
        feeds = {v.name: case.feeds[v.name] for v in proto.graph.input}
        wrt, targets = [w for w in case.wrt if w in there], [t for t in case.targets if t in there]
        return replace(case, fixed=proto, symbolic=proto, feeds=feeds, wrt=wrt, targets=targets)

    def fails(proto: ModelProto) -> bool:
        left = smaller(proto)
        again = failure(left) if left.wrt and left.targets else None
        return again is not None and kind(again) == kind(words)

    smallest = shrink(case.fixed, fails)
    left = smaller(smallest)
    request = (
        f"wrt {', '.join(left.wrt)}; targets {', '.join(left.targets)}; checkpoint "
        f"{left.checkpoint}"
    )
    path = save_failure(folder, name, smallest, left.feeds, f"{words}\n{request}")
    print(f"  {path}: {len(smallest.graph.node)} nodes", flush=True)


if __name__ == "__main__":
    sys.exit(command(sweep, __doc__))
