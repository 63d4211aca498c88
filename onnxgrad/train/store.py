"""A training step as a folder: `train.onnx`, `eval.onnx`, `state.safetensors`; `manifest.json`
comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import save_together
from onnxgrad.train import tensors
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.step import TrainingStep

MANIFEST = "manifest.json"


def save_step(step: TrainingStep, folder: str | PathLike[str]) -> None:
    """Write a step into a folder, which is made where it is missing; its files appear together or
    not at all.

    Raises InputError when something cannot be written.
    """
    manifest = step.manifest
    contents: dict[str, Program | bytes] = {
        manifest.train: step.train,
        manifest.eval: step.evaluation,
    }
    if step.update is not None and manifest.update is not None:
        contents[manifest.update] = step.update
    contents[manifest.state] = tensors.to_bytes(step.initial, {"model": manifest.model})
    contents[MANIFEST] = manifest.to_json().encode()
    save_together(folder, contents)


def read_step(folder: str | PathLike[str]) -> TrainingStep:
    """The step that `save_step` wrote. Raises InputError for a folder that holds none, or parts
    of several.
    """
    with opened_step(folder) as step:
        return replace(step, initial=dict(step.initial))


@contextmanager
def opened_step(folder: str | PathLike[str]) -> Iterator[TrainingStep]:
    """As `read_step`, but each initial value is read whenever it is asked for, inside of it."""
    folder = Path(folder)
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}: is {folder} a training step?") from None
    manifest = Manifest.from_json(text, str(path))
    with tensors.opened(folder / manifest.state) as values:
        model = values.metadata.get("model", "")
        check_values(values.outlines, manifest, model, str(folder / manifest.state))
        update = None if manifest.update is None else load(folder / manifest.update)
        train, evaluation = load(folder / manifest.train), load(folder / manifest.eval)
        yield TrainingStep(train, evaluation, values, manifest, update)


def check_values(values: tensors.Arrays, manifest: Manifest, model: str, where: str) -> None:
    """Raises InputError when these are not the parameters and states of the step, or of another
    model's.
    """
    if model != manifest.model:
        raise InputError(
            f"{where} is of another model than this training step: use the folder that it came from"
        )
    carried = {fed.name for fed in manifest.inputs if fed.next is not None}
    if strange := sorted(set(values) - carried):
        raise InputError(
            f"{where} has '{strange[0]}', which this step does not know: it is of another training "
            "step"
        )
    for fed in manifest.inputs:
        if fed.next is None:
            continue
        if fed.name not in values:
            raise InputError(
                f"{where} lacks '{fed.name}': it is damaged, or of another training step"
            )
        array = values[fed.name]
        if array.shape != fed.shape or array.dtype.name != fed.dtype:
            raise InputError(
                f"{where} has {array.dtype}{list(array.shape)} for '{fed.name}', the step takes "
                f"{fed.dtype}{list(fed.shape or ())}"
            )
