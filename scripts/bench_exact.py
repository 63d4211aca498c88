"""How many rewrites are the same algebra: `python scripts/bench_exact.py [--write] [MODEL ...]`.

Rewrites the models of models/ and the packaged ones that `scripts/fetch_models.py` has fetched with
the default preset, with merge auto and with merge always, as `optimize --exact` does but in one
process, and counts the verdicts by pass. Rewrites that need no algebra (constant folding, merging
equal values, unused parts, identities) are counted apart. With `--write`, writes
scripts/results/exact.md. Exit code 1 if a rewrite is refuted or a change was not recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.ir.load import load  # noqa: E402  # runs from a checkout
from onnxgrad.passes.pipeline import Pipeline  # noqa: E402
from onnxgrad.rewrite.exact_record import (  # noqa: E402
    Decided,
    ExactProver,
    ExactReport,
    RewriteNotExact,
)
from onnxgrad.rewrite.trace import Trace  # noqa: E402
from onnxgrad.verify.exact.decide import decide  # noqa: E402
from scripts.fetch_models import cache_folder  # noqa: E402
from scripts.records import write_record  # noqa: E402

MERGE = ("auto", "always")
_ALL, _ONE = 300.0, 60.0  # seconds for the windows of a model, and for one of them


def record(path: Path, merge: str) -> ExactReport:
    """Returns the verdicts on the rewrites of one model; those up to a refuted one."""
    warnings.simplefilter("ignore")
    program, trace = load(path), Trace()
    prover = ExactProver(program, trace, decide=lambda w, _: decide(w, seconds=_ONE), seconds=_ALL)
    try:
        Pipeline.of(merge=merge).run(program, trace)
    except RewriteNotExact as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        return error.report
    return prover.finish()


def by_pass(found: list[ExactReport]) -> dict[str, list[Decided]]:
    """Returns the rewrites that need algebra, by pass."""
    passes: dict[str, list[Decided]] = defaultdict(list)
    for report in found:
        for d in report.algebra:
            passes[d.pass_name].append(d)
    return passes


def row(name: str, decided: list[Decided]) -> str:
    """Returns one row of the table of passes."""
    verdicts = Counter(d.verdict for d in decided)
    good = verdicts["exact"] + verdicts["rounded"]
    reasons = Counter(d.kind for d in decided if d.verdict in ("sampled", "refuted"))
    why = "; ".join(f"{n} {reason}" for reason, n in reasons.most_common())
    return (
        f"| {name} | {len(decided)} | {verdicts['exact']} | {verdicts['rounded']} | "
        f"{len(decided) - good} | {good / max(1, len(decided)):.1%} | {why.replace('|', '/')} |"
    )


def lines(found: dict[tuple[str, str], ExactReport]) -> list[str]:
    """Returns the record as Markdown."""
    out = []
    for merge in MERGE:
        reports = [report for (_, m), report in found.items() if m == merge]
        passes = by_pass(reports)
        every = [d for decided in passes.values() for d in decided]
        out += [f"## merge {merge}: {len(reports)} models", ""]
        out += ["| pass | rewrites | exact | up to rounding | sampled | share | why sampled |",
                "|---|---|---|---|---|---|---|"]  # fmt: skip
        out += [row(name, decided) for name, decided in sorted(passes.items())]
        out += [row("all", every), ""]
        plain: dict[str, Counter[str]] = defaultdict(Counter)
        for report in reports:
            for group, counts in report.plain.items():
                plain[group].update(counts)
        counted = (
            f"{group}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
            for group, counts in sorted(plain.items())
        )
        out += [f"Not counted: {'; '.join(counted)}.", ""]
        low = [
            name
            for name, decided in passes.items()
            if len(decided) >= 10
            and sum(d.verdict in ("exact", "rounded") for d in decided) < 0.6 * len(decided)
        ]
        out += [f"Passes of ten rewrites below 60 %: {', '.join(low) or 'none'}.", ""]
    out += ["## By model", "", f"| model | {' | '.join(f'merge {m}' for m in MERGE)} |",
            "|---|---|---|"]  # fmt: skip
    for name in dict.fromkeys(name for name, _ in found):
        cells = (str(found[name, m]) if (name, m) in found else "" for m in MERGE)
        out.append(f"| {name} | {' | '.join(c.replace('|', '/') for c in cells)} |")
    return out


def main() -> int:
    """Prints the record, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60, help="leave out what is later")
    options = parser.parse_args()
    models = options.models or [
        *sorted((ROOT / "models").glob("*.onnx")), *sorted(cache_folder("models").glob("*.onnx"))
    ]  # fmt: skip
    found: dict[tuple[str, str], ExactReport] = {}
    deadline = time.monotonic() + 60 * options.minutes
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        waiting = {(p.stem, m): pool.apply_async(record, (p, m)) for p in models for m in MERGE}
        for key, result in waiting.items():
            with contextlib.suppress(multiprocessing.TimeoutError):
                found[key] = result.get(max(0.0, deadline - time.monotonic()))
                print(f"{key[0]}, merge {key[1]}: {found[key]}", file=sys.stderr)
    late = [f"{name} (merge {merge})" for name, merge in waiting if (name, merge) not in found]
    text = [f"Not done in time: {', '.join(late) or 'none'}.", "", *lines(found)]
    if options.write:
        print(f"wrote {write_record('exact', text)}")
    else:
        print("\n".join(text))
    every = [d for report in found.values() for d in report.each]
    return int(
        any(d.verdict == "refuted" for d in every) or not all(r.chained for r in found.values())
    )


if __name__ == "__main__":
    sys.exit(main())
