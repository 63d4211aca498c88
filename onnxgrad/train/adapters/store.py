"""Adapters alone, as a file beside the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.train import tensors
from onnxgrad.train.adapters.record import Adapters, adapters_of, of_words

Given: TypeAlias = "Adapters | str | PathLike[str]"
_WORDS = "lora"


@known_keywords
def save_adapters(
    model: ModelLike | Adapters,
    path: str | PathLike[str],
    values: Mapping[str, Array] | None = None,
) -> None:
    """Write the adapters of a model, or `Adapters`, as a safetensors file: only their numbers,
    with rank, alpha, targets and the digest of the base model.

    values: what training made of them (`Trainer.parameters`). Raises InputError as `adapters_of`
    does, and when the file cannot be written.
    """
    given = model if isinstance(model, Adapters) and values is None else None
    found = given or adapters_of(model, values)
    try:
        tensors.write(Path(path), found.values, {_WORDS: json.dumps(found.words())})
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


@known_keywords
def read_adapters(path: str | PathLike[str]) -> Adapters:
    """What `save_adapters` wrote. Raises InputError for a file that is missing, damaged or
    another's.
    """
    values, said = tensors.read(Path(path))
    try:
        words = json.loads(said[_WORDS])
    except (KeyError, ValueError):
        raise InputError(f"{path} holds no adapters that save_adapters wrote") from None
    return of_words(words, values, str(path))


def read_if_path(given: Given) -> Adapters:
    """The adapters themselves."""
    return given if isinstance(given, Adapters) else read_adapters(given)
