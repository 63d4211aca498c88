"""`onnxgrad passes`: lists passes with their law and options, and presets with the reason of each
step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.options import described, kinds_of
from onnxgrad.passes.base import Pass, all_passes
from onnxgrad.passes.presets import DESCRIBED, Preset
from onnxgrad.passes.user_laws import pass_of
from onnxgrad.report.parts import Part, cell, line, table
from onnxgrad.wording import did_you_mean


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0. Raises InputError for an unknown name."""
    for name in args.name:
        pass_of(name)  # plug-ins of installed packages are imported by name
    known = all_passes()
    names = args.name or [*known, *DESCRIBED]
    for name in names:
        if name not in known and name not in DESCRIBED:
            hint = did_you_mean(name, (*known, *DESCRIBED), "`onnxgrad passes` lists them")
            raise InputError(f"unknown pass or preset '{name}': {hint}")
    passes = {name: known[name] for name in sorted(known) if name in names}
    presets = {name: preset for name, preset in DESCRIBED.items() if name in names}
    out.json(
        {
            "passes": [
                {"name": n, "law": p.law(), "options": _options(p)} for n, p in passes.items()
            ],
            "presets": [
                {
                    "name": n,
                    "why": p.why,
                    "passes": [{"pass": s.item, "why": s.why} for s in p.steps],
                }
                for n, p in presets.items()
            ],
        }
    )
    out.show(*_parts(passes, presets, bool(args.name) or out.verbose))
    return 0


def _options(cls: type[Pass]) -> list[dict[str, Any]]:
    """Returns name, type and default of each option that can be set as text."""
    return [
        {
            "name": f.name,
            "type": described(kinds_of(cls)[f.name]),
            "default": None if f.default is MISSING else f.default,
        }
        for f in fields(cls)
        if described(kinds_of(cls)[f.name])
    ]


def _parts(
    passes: dict[str, type[Pass]], presets: dict[str, Preset], with_reasons: bool
) -> Iterator[Part]:
    for name, cls in passes.items():
        options = ", ".join(f"{o['name']}={_shown(o['default'])}" for o in _options(cls))
        yield line(name, "bold cyan") + cell(f"{{{options}}}" if options else "", "cyan")
        yield line(cls.law(), indent=4)
    for name, preset in presets.items():
        yield ""
        yield line("preset ", "dim") + line(name, "bold") + line(f": {preset.why}")
        if with_reasons:
            steps = enumerate(preset.steps, 1)
            rows = ((str(i), cell(step.item, "cyan"), cell(step.why, "dim")) for i, step in steps)
            yield table(">", "pass", "why here", rows=rows)
        else:
            yield line(", ".join(step.item for step in preset.steps), "dim", indent=4)
    if presets and not with_reasons:
        yield ""
        yield line("`onnxgrad passes PRESET` explains the position of each pass", "dim")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
