"""The file of decisions, with the model, machine and versions to which they apply, and their replay
without measuring.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, proto_of
from onnxgrad.ir.storage import external_data
from onnxgrad.ir.storage.atomic_files import text_of, write_whole
from onnxgrad.jobs.tuning.choices import Choices, described
from onnxgrad.jobs.tuning.measure import Decision, Measuring, OnChoice, Tuned, tune
from onnxgrad.options import providers_of
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify.running.session import versions
from onnxgrad.version import __version__
from onnxgrad.vocabulary import TUNE_SECONDS
from onnxgrad.wording import one_line, printable_json

_FORMAT = 1
# options of a proof under which models are measured
_MEASURED_ON = ("provider", "threads", "inputs", "dims")


def digest(model: ModelLike) -> str:
    """Returns the sha256 of a model and its external weights. Raises InputError if a file cannot be
    read.
    """
    proto, folder = proto_of(model)
    found = hashlib.sha256(proto.SerializeToString(deterministic=True))
    for tensor in external_data.outside(proto):
        found.update(external_data.internalize(tensor, folder).raw_data)
    return found.hexdigest()


def record(
    model: ModelLike, pipeline: Pipeline, measuring: Measuring, tuned: Tuned
) -> dict[str, Any]:
    """Returns the content of the file in JSON types. `pipeline` is that of the static rule."""
    options = measuring.options
    return {
        "format": _FORMAT,
        "model": digest(model),
        "passes": described(pipeline),
        "provider": options.get("provider", "cpu"),
        "threads": options.get("threads", 1),
        "dims": dict(options.get("dims") or {}),
        "inputs": _shown(options.get("inputs")),
        "versions": {
            "onnxgrad": __version__,
            "onnx": onnx.__version__,
            "onnxruntime": versions()["onnxruntime"],
        },
        "decisions": [d.to_dict() for d in tuned.decisions],
        "total": None if tuned.total is None else tuned.total.to_dict(),
    }


def _shown(inputs: Any) -> Any:
    """Returns the names of files, or the shapes of values."""
    if inputs is None or isinstance(inputs, str):
        return inputs
    if isinstance(inputs, Mapping):
        return {name: str(getattr(v, "shape", "")) for name, v in inputs.items()}
    return [os.fspath(i) if isinstance(i, (str, os.PathLike)) else _shown(i) for i in inputs]


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Writes the file completely or not at all. Raises InputError."""
    try:
        write_whole(path, (printable_json(data, indent=1) + "\n").encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the decisions in a file. Raises InputError if it is missing or another kind
    of file.
    """
    try:
        data: dict[str, Any] = json.loads(text_of(Path(path)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {one_line(error, 200)}") from error
    found = data.get("decisions") if isinstance(data, dict) else None
    listed = isinstance(found, list) and all(
        isinstance(d, dict) and isinstance(d.get("choice"), str) and isinstance(d.get("kept"), bool)
        for d in found
    )
    if not listed or data.get("format") != _FORMAT:
        raise InputError(f"{path}: not a file of decisions of this version: tune again")
    return data


def replayed(model: ModelLike, pipeline: Pipeline, data: Mapping[str, Any], where: str) -> Tuned:
    """Returns the decisions of a file, without measuring. Raises InputError if they were made for
    another model, other passes or by another version.
    """
    if data.get("model") != digest(model):
        raise InputError(f"{where}: these decisions are another model's: tune this one")
    made_by = (data.get("versions") or {}).get("onnxgrad")
    if made_by != __version__:
        raise InputError(
            f"{where}: these decisions are of onnxgrad {made_by}, this is {__version__}: tune again"
        )
    if data.get("passes") != described(pipeline):
        raise InputError(f"{where}: these decisions were taken with other passes: tune again")
    choices = Choices.of(model, pipeline)
    known = {choice.name: choice for choice in choices.all}
    kept = [d["choice"] for d in data["decisions"] if d["kept"]]
    strange = next((name for name in kept if name not in known), None)
    if strange is not None:
        raise InputError(f"{where}: there is no choice '{strange[:80]}' here: tune again")
    decisions = tuple(
        Decision(d["choice"], d["kept"], d.get("ratio"), d.get("spread"), d.get("why", ""))
        for d in data["decisions"]
    )
    return Tuned(choices.made(known[name] for name in kept), decisions)


@frozen
class Tuning:
    """Measures for some seconds, or replays the decisions in `where`."""

    seconds: float = TUNE_SECONDS
    replay: Mapping[str, Any] | None = None
    where: str = ""

    @staticmethod
    def of(given: Any) -> Tuning:
        """Returns the meaning of `tune` of `optimize`: true and seconds measure, a file or its
        contents are replayed. Raises InputError.
        """
        if isinstance(given, Mapping):
            return Tuning(replay=given, where="tune")
        if isinstance(given, (str, os.PathLike)):
            return Tuning(replay=read(given), where=os.fspath(given))
        seconds = TUNE_SECONDS if given is True else float(given)
        if not seconds > 0:
            raise InputError(f"tune={given!r}: the seconds must be a positive number")
        return Tuning(seconds)

    def decide(
        self,
        model: ModelLike,
        pipeline: Pipeline,
        options: Mapping[str, Any],
        on_choice: OnChoice | None = None,
    ) -> tuple[Pipeline, dict[str, Any]]:
        """Returns the pipeline for `model`, and the decisions in JSON types.

        `options` are those of the proof; `on_choice` receives each choice. Raises InputError for a
        model that does not run, and for decisions about another model.
        """
        if self.replay is not None:
            return replayed(model, pipeline, self.replay, self.where).pipeline, dict(self.replay)
        chosen = {k: v for k, v in options.items() if k in _MEASURED_ON}
        chosen["provider"] = providers_of(chosen.get("provider") or "cpu")[0]
        measuring = Measuring(chosen, self.seconds)
        found = tune(model, pipeline, measuring, on_choice)
        return found.pipeline, record(model, pipeline, measuring, found)
