"""Decides every built-in law on windows: the models of the tests that it rewrites, and random ones.

    python scripts/sweep_exact.py [--models 4] [--write]

The models of the tests of laws and passes are taken before and after one application of the law
(scripts/sweeping/windows.py). Each random model is that of scripts/sweep_laws.py with the same seed
and number. A law is exact if exact evaluation decides all of its windows; else the table names the
reason that stopped it first. With `--write`, writes scripts/results/exact_laws.md. Exit code 1 if a
law is refuted, or has no window.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import OnnxgradError  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.rewrite.trace import Trace  # noqa: E402
from onnxgrad.verify.exact.decide import decide  # noqa: E402
from onnxgrad.verify.exact.window import Decision  # noqa: E402
from scripts.records import write_record  # noqa: E402
from scripts.sweep_laws import Law, _models, laws  # noqa: E402
from scripts.sweeping.windows import Found, harvest  # noqa: E402

RECORD = ROOT / "scripts" / "results" / "exact_laws.md"
_SECONDS = 20.0  # for one window
# windows that decide nothing about a law
_EMPTY = "the claims have no elements"
_INVALID = re.compile(r"could not be broadcast|cannot reshape|mismatch in its core dimension")


def random_window(law: Law, seed: int, number: int) -> Found | None:
    """Returns a random model and its rewritten form; None if the law does not rewrite it."""
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
    after = to_proto(program).SerializeToString()
    return Found(law.rule, f"random {number}", model.SerializeToString(), after)


def windows_of(
    law: Law, from_tests: Mapping[str, list[Found]], seed: int, models: int
) -> Iterator[Found]:
    """Yields the windows of a law: those of the tests, then random ones."""
    yield from from_tests.get(law.rule, ())
    for number in range(models):
        if found := random_window(law, seed, number):
            yield found


def decided(found: Found, seed: int = 0) -> Decision | None:
    """Returns the decision about a window; None if it is empty, or no runtime accepts it."""
    decision = decide(found.window, seed=seed, seconds=_SECONDS)
    why = decision.stopped_by
    return None if why == _EMPTY or _INVALID.search(why) else decision


def sweep(
    from_tests: Mapping[str, list[Found]], seed: int = 0, models: int = 0
) -> dict[str, list[Decision]]:
    """Returns the decisions by law."""
    return {
        law.name: [
            decision
            for found in windows_of(law, from_tests, seed, models)
            if (decision := decided(found, seed)) is not None
        ]
        for law in laws()
    }


def _verdict(decisions: list[Decision]) -> str:
    """Returns the verdict on a law."""
    kinds = {d.verdict for d in decisions}
    if not decisions or "refuted" in kinds:
        return "refuted" if decisions else "no window"
    if "sampled" in kinds:
        return "sampled" if kinds == {"sampled"} else "in part"
    return "exact up to rounding" if "rounded" in kinds else "exact"


def _reason(decision: Decision) -> str:
    """Returns the reason without the name and the place of the value."""
    short = re.sub(r"^\S+ differs, and ", "", re.sub(r"\[[\d, ]*\] differs", " differs",
                                                     decision.stopped_by))  # fmt: skip
    return short.replace("|", "/")


def table(found: Mapping[str, list[Decision]]) -> list[str]:
    """Returns the results as Markdown: the laws with their verdicts, and the reasons."""
    counts = Counter(_verdict(decisions) for decisions in found.values())
    total = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    head = "| law | verdict | windows | exact | up to rounding | stopped the others |"
    rows = []
    for name, decisions in sorted(found.items()):
        kinds = Counter(d.verdict for d in decisions)
        reasons = dict.fromkeys(_reason(d) for d in decisions if not d)
        cells = (name, _verdict(decisions), len(decisions), kinds["exact"], kinds["rounded"],
                 "; ".join(list(reasons)[:2]))  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return [f"{len(found)} laws: {total}.", "", head, "|---" * 6 + "|", *rows]


def main() -> int:
    """Prints the table, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, default=4, help="random models of each law")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sweep(harvest(), options.seed, options.models)
    text = table(found)
    if options.write:
        print(f"wrote {write_record('exact_laws', text)}")
    else:
        print("\n".join(text))
    return int(any(_verdict(decisions) in ("refuted", "no window") for decisions in found.values()))


if __name__ == "__main__":
    sys.exit(main())
