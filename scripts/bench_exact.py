"""How many rewrites are the same algebra: `python scripts/bench_exact.py [--write] [MODEL ...]`.

Rewrites the models of models/ and the packaged ones that `scripts/fetch_models.py` has fetched with
the default preset, with merge auto and with merge always, as `optimize --exact` does but in one
process, and counts the verdicts by pass. Rewrites that need no algebra (constant folding, merging
equal values, unused parts, identities) are counted apart. With `--write`, writes
scripts/results/exact.md; with `--add` too, keeps the models that it has. Exit code 1 if a rewrite
is refuted or a change was not recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.ir.load import load  # noqa: E402  # runs from a checkout
from onnxgrad.passes.pipeline import Pipeline  # noqa: E402
from onnxgrad.rewrite.exact_record import (  # noqa: E402
    ExactProver,
    ExactReport,
    RewriteNotExact,
)
from onnxgrad.rewrite.trace import Trace  # noqa: E402
from onnxgrad.verify.exact.decide import decide  # noqa: E402
from scripts.fetch_models import cache_folder  # noqa: E402
from scripts.records import RESULTS, rows, write_record  # noqa: E402

MERGE = ("auto", "always")
_ALL, _ONE = 1200.0, 300.0  # seconds for the windows of a model, and for one of them


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


@dataclass
class Summary:
    """The verdicts on the rewrites of some models, under one choice of `merge`.

    models: what each report says. passes: by pass, how many rewrites that need algebra are `exact`
    or `rounded`, and how many are neither, by reason. plain: the verdicts on the others, by group.
    """

    models: dict[str, str] = field(default_factory=dict)
    passes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    plain: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, name: str, report: ExactReport) -> None:
        """Adds the report on a model."""
        self.models[name] = str(report)
        for d in report.algebra:
            self.passes[d.pass_name][d.verdict if d.verdict in _GOOD else d.kind] += 1
        for group, counts in report.plain.items():
            self.plain[group].update(counts)

    def lines(self, merge: str) -> list[str]:
        """Returns the tables as Markdown."""
        every: Counter[str] = sum(self.passes.values(), Counter())
        low = [
            name
            for name, counts in self.passes.items()
            if counts.total() >= 10 and _good(counts) < 0.6 * counts.total()
        ]
        groups = (
            f"{group}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
            for group, counts in sorted(self.plain.items())
        )
        return [
            f"## merge {merge}: {len(self.models)} models", "",
            "| pass | rewrites | exact | up to rounding | sampled | share | why sampled |",
            "|---|---|---|---|---|---|---|",
            *(_row(name, counts) for name, counts in sorted(self.passes.items())),
            _row("all", every), "",
            f"Not counted: {'; '.join(groups)}.", "",
            f"Passes of ten rewrites below 60 %: {', '.join(low) or 'none'}.", "",
        ]  # fmt: skip


_GOOD = ("exact", "rounded")


def _good(counts: Counter[str]) -> int:
    return sum(counts[verdict] for verdict in _GOOD)


def _row(name: str, counts: Counter[str]) -> str:
    """Returns one row of the table of passes."""
    of, good = counts.total(), _good(counts)
    why = "; ".join(f"{n} {reason}" for reason, n in counts.most_common() if reason not in _GOOD)
    return (
        f"| {name} | {of} | {counts['exact']} | {counts['rounded']} | {of - good} | "
        f"{good / max(1, of):.1%} | {why.replace('|', '/')} |"
    )


def recorded() -> dict[str, Summary]:
    """Returns what the record says, by `merge`."""
    found: dict[str, Summary] = {}
    merge = ""
    for line in (RESULTS / "exact.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("## merge"):
            merge = line.split()[2].strip(":")
            found[merge] = Summary()
        elif line.startswith("Not counted: "):
            for group in line.removeprefix("Not counted: ").strip(".").split("; "):
                name, counts = group.split(": ")
                each = (words.split() for words in counts.split(", "))
                found[merge].plain[name].update({verdict: int(n) for n, verdict in each})
        elif len(cells) == 7 and cells[1].isdecimal() and cells[0] != "all":
            reasons = re.findall(r"(\d+) (.+?)(?=; \d+ |$)", cells[6])
            counts = Counter(exact=int(cells[2]), rounded=int(cells[3]))
            counts.update({reason: int(n) for n, reason in reasons})
            found[merge].passes[cells[0]] = counts
    for name, *each_merge in rows("exact.md", "| model |"):
        for one, words in zip(MERGE, each_merge, strict=True):
            if words:
                found[one].models[name] = words
    return found


def lines(found: Mapping[str, Summary]) -> list[str]:
    """Returns the record as Markdown."""
    out = [line for merge in MERGE for line in found[merge].lines(merge)]
    out += ["## By model", "", f"| model | {' | '.join(f'merge {m}' for m in MERGE)} |",
            "|---|---|---|"]  # fmt: skip
    for name in dict.fromkeys(name for summary in found.values() for name in summary.models):
        cells = (found[m].models.get(name, "") for m in MERGE)
        out.append(f"| {name} | {' | '.join(c.replace('|', '/') for c in cells)} |")
    return out


def written(found: Mapping[tuple[str, str], ExactReport], *, add: bool) -> list[str]:
    """Returns the record of these reports. `add`: beside those of other models that it has."""
    summaries = recorded() if add else {merge: Summary() for merge in MERGE}
    again = sorted({name for name, merge in found if name in summaries[merge].models})
    if again:
        raise SystemExit(f"--add: the record has {', '.join(again)}")
    for (name, merge), report in found.items():
        summaries[merge].add(name, report)
    return lines(summaries)


def main() -> int:
    """Prints the record, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--add", action="store_true", help="keep the other models of the record")
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
    record_of = written(found, add=options.add)
    text = [f"Not done in time: {', '.join(late) or 'none'}.", "", *record_of]
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
