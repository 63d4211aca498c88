"""Rewriting decided by measurement, for whoever asks for it: decide or replay, and the table of
decisions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike
from onnxgrad.jobs.tuning.measure import LATE, Measuring, Told, tune
from onnxgrad.jobs.tuning.record import read, record, replayed
from onnxgrad.options import providers_of
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.report.parts import Part, cell, line, table
from onnxgrad.vocabulary import TUNE_SECONDS
from onnxgrad.wording import counted

Asked: TypeAlias = "bool | float | str | os.PathLike[str] | Mapping[str, Any] | None"
# options of a proof that say where and on what a model runs
_MEASURED_ON = ("provider", "threads", "inputs", "dims")
_UNDECIDED = 6  # rows of choices that were not kept, without -v


@dataclass(frozen=True)
class Tuning:
    """What is asked for: to measure for so many seconds, or to replay decisions, `where` from."""

    seconds: float = TUNE_SECONDS
    replay: Mapping[str, Any] | None = None
    where: str = ""

    @staticmethod
    def of(asked: Asked) -> Tuning | None:
        """True or seconds measure, a file or what it holds is replayed. Raises InputError."""
        if asked is None or asked is False:
            return None
        if isinstance(asked, Mapping):
            return Tuning(replay=asked, where="tune")
        if isinstance(asked, (str, os.PathLike)):
            return Tuning(replay=read(asked), where=os.fspath(asked))
        seconds = TUNE_SECONDS if asked is True else float(asked)
        if not seconds > 0:
            raise InputError(f"tune={asked!r}: a positive number of seconds is wanted")
        return Tuning(seconds)

    def decide(
        self,
        model: ModelLike,
        pipeline: Pipeline,
        options: Mapping[str, Any],
        told: Told | None = None,
    ) -> tuple[Pipeline, dict[str, Any]]:
        """The pipeline that was decided on for `model`, and what a file of the decisions says.

        `options`: those of the proof; `told` hears of each choice. Raises InputError for a model
        that does not run and for decisions that are not about it.
        """
        if self.replay is not None:
            return replayed(model, pipeline, self.replay, self.where).pipeline, dict(self.replay)
        chosen = {k: v for k, v in options.items() if k in _MEASURED_ON}
        chosen["provider"] = providers_of(chosen.get("provider") or "cpu")[0]
        measuring = Measuring(chosen, self.seconds)
        found = tune(model, pipeline, measuring, told)
        return found.pipeline, record(model, pipeline, measuring, found)


def tuning_parts(data: Mapping[str, Any] | None, verbose: bool = False) -> Iterator[Part]:
    """Each decision with its time over that of what was kept before, and the whole; nothing where
    nothing was decided.
    """
    if data is None:
        return
    yield ""
    decisions = data["decisions"]
    measured = [d for d in decisions if d["kept"] or d["ratio"] is not None]
    others = sorted((d for d in measured if not d["kept"]), key=lambda d: d["ratio"] or 1.0)
    shown = [d for d in measured if d["kept"]] + others[: None if verbose else _UNDECIDED]
    made = table("choice", ">time", ">spread", "decision")
    for d in [*shown, *([data["total"]] if data.get("total") else [])]:
        style = "green" if d["kept"] else "dim"
        ratio, spread = d["ratio"], d["spread"]
        made.add_row(
            cell(d["choice"]),
            "" if ratio is None else f"{ratio:.3f}",
            "" if spread is None else f"± {spread:.3f}",
            cell("kept" if d["kept"] else d.get("why") or "not beyond the noise", style),
        )
    where = f"{data['provider']}, {counted(data['threads'], 'thread')}"
    if made.rows:
        yield made
    kept = sum(d["kept"] for d in decisions)
    late = sum(d.get("why") == LATE for d in decisions)
    more = f", {late} not measured for want of time" if late else ""
    yield line(
        f"{kept} of {counted(len(decisions), 'choice')} kept, measured on {where}{more}", "dim"
    )
