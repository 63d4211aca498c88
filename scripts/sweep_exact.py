"""Decides every built-in law on random models that its pattern matches.

    python scripts/sweep_exact.py --models 4 --minutes 0.75 > scripts/results/exact_laws.md

Each model is that of scripts/sweep_laws.py with the same seed and number. A law is exact if exact
evaluation decides every model that the law rewrites; else the table names what stopped it first.
Exit code 1 if a law is refuted.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import OnnxgradError  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.rewrite.trace import Trace  # noqa: E402
from onnxgrad.verify.exact.decide import decide  # noqa: E402
from onnxgrad.verify.exact.window import Decision, Window  # noqa: E402
from scripts.sweep_laws import Law, _models, laws  # noqa: E402


def decided(law: Law, seed: int, number: int, seconds: float) -> Decision | None:
    """Returns the decision about one model, or None if the law does not rewrite it."""
    rng = Random(f"{seed}/{law.name}/{number}")
    model = next(_models(law, rng), None)
    if model is None:
        return None
    try:
        program, trace = load(model), Trace()
        law.apply(program, trace)
    except OnnxgradError:
        return None
    if not trace.rewrites:
        return None
    after = to_proto(program)
    claims = tuple((o.name, o.name) for o in model.graph.output)
    return decide(Window(model, after, claims, rule=law.name), seed=seed, seconds=seconds)


def sweep(
    seed: int, models: int, minutes: float, seconds: float = 5.0
) -> dict[str, list[Decision]]:
    """Returns the decisions by law."""
    deadline = time.monotonic() + 60 * minutes
    found: dict[str, list[Decision]] = {law.name: [] for law in laws()}
    for number in range(models):
        for law in laws():
            if time.monotonic() > deadline:
                return found
            decision = decided(law, seed, number, seconds)
            if decision is not None:
                found[law.name].append(decision)
    return found


def table(found: dict[str, list[Decision]]) -> str:
    """Returns the results as Markdown: laws by verdict, and what stopped those not exact."""
    rows, counts = [], Counter[str]()
    for name, decisions in sorted(found.items()):
        verdicts = Counter(d.verdict for d in decisions)
        counts["matched no model"] += not decisions
        stopped = next((d.stopped_by for d in decisions if not d), "")
        if not decisions:
            continue
        counts["exact" if not stopped else "in part" if verdicts["exact"] else "not"] += 1
        rows.append(f"| {name} | {len(decisions)} | {verdicts['exact'] + verdicts['rounded']} | "
                    f"{stopped.replace('|', '/')} |")  # fmt: skip
    head = "| law | models that it rewrote | exact | what stopped the first other one |"
    total = ", ".join(f"{key}: {n}" for key, n in counts.items())
    return "\n".join([f"Laws: {total}.", "", head, "|---|---|---|---|", *rows])


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=30)
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sweep(options.seed, options.models, options.minutes)
    print(table(found))
    return int(any(d.verdict == "refuted" for ds in found.values() for d in ds))


if __name__ == "__main__":
    sys.exit(main())
