"""Writes the tables of options in the help pages and the names in onnxgrad/vocabulary.py, from the
declarations and the registries.

    python scripts/make_tables.py

Run it again when an option, a pass, a loss, an optimiser or a schedule changes;
tests/test_vocabulary.py compares.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from onnxgrad import help, vocabulary
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import Option, options_of, table_of
from onnxgrad.jobs.lint.table import LINTS
from onnxgrad.jobs.recipe import GATES, OF_CI, OPTIONS
from onnxgrad.passes.base import all_passes
from onnxgrad.train.losses import LOSSES
from onnxgrad.train.metrics import METRICS
from onnxgrad.train.optimizers import OPTIMIZERS
from onnxgrad.train.schedules import SCHEDULES

PAGES, VOCABULARY = Path(str(help.__file__)).parent, Path(str(vocabulary.__file__))
NAMES = {
    "PASSES": sorted(all_passes()), "LOSSES": sorted(LOSSES), "METRICS": sorted(METRICS),
    "LINTS": list(LINTS),
    "OPTIMIZERS": OPTIMIZERS, "SCHEDULES": SCHEDULES,
}  # fmt: skip
# the largest number of a type is no limit that matters to a reader
_LARGEST = re.compile(r"from (\S+) to [\d.]+e\+(?:18|308)")
# a table of a page, found by its first line
_TABLE = re.compile(r"\| (?:option \| values|key \| values|lint \| default) \|.*\n(?:\|.*\n)+")


def flags_of(title: str) -> list[Option]:
    """Returns the options of `optimize` under a title of its --help."""
    return [o for o in options_of(OptimizeOptions) if o.flag is not None and o.title == title]


def tables() -> dict[str, list[str]]:
    """Returns the tables of each page, in order."""
    bounds = next(o.title for o in options_of(OptimizeOptions) if o.name == "atol")
    groups = [flags_of("rewriting"), flags_of("proof"), flags_of(bounds)]
    keys = [{**OPTIONS, **GATES}, OF_CI]
    lints = (
        f"| `{one.name}` | {one.level}{', `ci`: ' + one.new if one.new != one.level else ''} | "
        f"{one.what} |"
        for one in LINTS.values()
    )
    return {
        "lint": ["\n".join(("| lint | default | finds |", "|---|---|---|", *lints))],
        "commands": [table_of(g, lambda o: f"{o.flag} {o.metavar}".strip()) for g in groups],
        "recipes": [table_of(group.values(), lambda o: o.toml) for group in keys],
    }


def page(topic: str, made: Iterable[str]) -> str:
    """Returns a help page with its tables replaced by these."""
    text = (PAGES / f"{topic}.md").read_text(encoding="utf-8")
    left = [_LARGEST.sub(r"at least \1", f"{each}\n") for each in made]
    found = _TABLE.sub(lambda _: left.pop(0), text)
    assert not left, f"{topic} has {len(left)} tables too few"
    return found


def vocabulary() -> str:
    """Returns the module with its names replaced by the registered ones."""
    text = VOCABULARY.read_text(encoding="utf-8")
    for name, words in NAMES.items():
        listed = ", ".join(f'"{word}"' for word in words)
        lines = textwrap.indent(textwrap.fill(listed, 96, break_on_hyphens=False), "    ")
        text = re.sub(rf"(?<=^{name} = \(\n).*?(?=,\n\))", lines, text, flags=re.M | re.S)
    return text


def files() -> dict[Path, str]:
    """Returns the up-to-date text of every file."""
    pages = {PAGES / f"{topic}.md": page(topic, made) for topic, made in tables().items()}
    return {**pages, VOCABULARY: vocabulary()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
