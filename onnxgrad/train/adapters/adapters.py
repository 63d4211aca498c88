"""Adapters: their matrices and parameters, in a model's metadata and in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, load, program_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.results import InNotebooks
from onnxgrad.vocabulary import ADAPTERS
from onnxgrad.wording import counted, shape_text

LORA_A, LORA_B = ".lora_A", ".lora_B"


@dataclass(frozen=True, repr=False)
class Adapters(InNotebooks):
    """The low-rank matrices beside weights of one model, by the names of their initializers.

    `<weight>.lora_A` has shape (in, rank), `<weight>.lora_B` (rank, out); alpha / rank times their
    product is added to the weight. base: the digest of the model. modules: the names of PEFT's
    modules by weight, for adapters that came from there.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    base: str
    values: Mapping[str, Array] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Returns a text without the numbers."""
        of = counted(len(self.weights), "weight")
        return f"Adapters(rank {self.rank}, alpha {self.alpha:g}, of {of})"

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank

    @property
    def weights(self) -> list[str]:
        """The names of the adapted weights."""
        return [name.removesuffix(LORA_A) for name in self.values if name.endswith(LORA_A)]

    def factors(self, weight: str) -> tuple[Array, Array]:
        """Returns A and B of a weight. Raises InputError if one of them is missing or has another
        rank.
        """
        found = [self.values.get(weight + suffix) for suffix in (LORA_A, LORA_B)]
        a, b = found
        if a is None or b is None:
            raise InputError(f"the adapter of '{weight}' is incomplete: it needs lora_A and lora_B")
        if a.ndim != 2 or b.ndim != 2 or not a.shape[1] == b.shape[0] == self.rank:
            raise InputError(
                f"the adapter of '{weight}' is {shape_text(a.shape)} and {shape_text(b.shape)}, "
                f"not of rank {self.rank}"
            )
        return a, b

    def words(self) -> dict[str, Any]:
        """Returns everything except the matrices."""
        return {
            "rank": self.rank,
            "alpha": self.alpha,
            "targets": list(self.targets),
            "base": self.base,
            **({"modules": dict(self.modules)} if self.modules else {}),
        }


def of_words(words: Any, values: Mapping[str, Array], where: str) -> Adapters:
    """Returns the adapters with these matrices, from the result of `Adapters.words`. Raises
    InputError for anything else.
    """
    try:
        rank, alpha = words["rank"], float(words["alpha"])
        if type(rank) is not int or rank < 1:
            raise ValueError(f"a rank of {rank}")
        targets = tuple(map(str, words["targets"]))
        modules = {str(k): str(v) for k, v in words.get("modules", {}).items()}
        return Adapters(rank, alpha, targets, str(words["base"]), values, modules)
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(f"{where} does not describe its adapters: {error!r}") from None


def with_note(program: Program, note: Mapping[str, Any]) -> Program:
    """Returns the program with a note on its adapters in the model's metadata."""
    proto = to_proto(program)
    proto.metadata_props.add(key=ADAPTERS, value=json.dumps(note, sort_keys=True))
    return program_of(proto, program.folder, digests=program.digests)


def note_of(proto: ModelProto) -> dict[str, Any] | None:
    """Returns the note on a model's adapters, or None. Raises InputError if it is damaged."""
    text = next((e.value for e in proto.metadata_props if e.key == ADAPTERS), None)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"the model's metadata '{ADAPTERS}' is damaged")
    return found


@known_keywords
def adapters_of(model: ModelLike, values: Mapping[str, Array] | None = None) -> Adapters:
    """Returns the adapters beside a model's weights, with these values if given (a Trainer's
    `parameters`).

    Raises InputError for a model without adapters or with several to choose from, and for values
    that do not fit.
    """
    program = load(model)
    note = note_of(program.proto)
    if note is None:
        raise InputError(
            f"the model has no adapters: its metadata has no '{ADAPTERS}', which lora() writes and "
            "another tool may have dropped"
        )
    if "names" in note:
        raise InputError(
            f"the model holds {counted(len(note['names']), 'adapter')} to choose from by an "
            "input: take one "
            "adapter from its original model"
        )
    held = {
        v.name: program.array(v.initializer)
        for v in program.main.initializers.values()
        if v.initializer is not None and v.name in _names(note)
    }
    if gone := sorted(_names(note) - held.keys()):
        raise InputError(
            f"'{gone[0]}' is not an initializer of the model any more: another tool moved the "
            "adapters: take them from the model that lora() made"
        )
    for name, value in (values or {}).items():
        if name not in held or held[name].shape != value.shape:
            raise InputError(
                f"'{name}' {shape_text(value.shape)} is not part of the model's adapters: "
                "pass values of *.lora_* only"
            )
        held[name] = value.astype(held[name].dtype)
    return of_words(note, held, "the model's metadata")


def _names(note: Mapping[str, Any]) -> set[str]:
    """Returns the names of the adapters' initializers."""
    return {str(name) for name in note.get("values", ())}


Given: TypeAlias = "Adapters | str | PathLike[str]"
_WORDS = "lora"


@known_keywords
def save_adapters(
    model: ModelLike | Adapters,
    path: str | PathLike[str],
    values: Mapping[str, Array] | None = None,
) -> None:
    """Writes the adapters of a model, or `Adapters`, as a safetensors file: only their matrices,
    with rank, alpha, targets and the digest of the base model.

    values: the trained matrices (`Trainer.parameters`). Raises InputError as `adapters_of` does,
    and if the file cannot be written.
    """
    given = model if isinstance(model, Adapters) and values is None else None
    found = given or adapters_of(model, values)
    try:
        safetensors_file.write(Path(path), found.values, {_WORDS: json.dumps(found.words())})
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


@known_keywords
def read_adapters(path: str | PathLike[str]) -> Adapters:
    """Returns the adapters in a file that `save_adapters` wrote. Raises InputError if the file is
    missing, damaged or of another tool.
    """
    values, metadata = safetensors_file.read(Path(path))
    try:
        words = json.loads(metadata[_WORDS])
    except (KeyError, ValueError, RecursionError):
        raise InputError(f"{path} holds no adapters that save_adapters wrote") from None
    return of_words(words, values, str(path))


def read_if_path(given: Given) -> Adapters:
    """Returns the adapters, read from a file if a path is given."""
    return given if isinstance(given, Adapters) else read_adapters(given)
