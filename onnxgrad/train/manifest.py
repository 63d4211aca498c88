"""`manifest.json`: which input of a training step is what, and which output becomes which input
of the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from onnxgrad.errors import InputError

VERSION = 1
Role = Literal["batch", "parameter", "state", "step", "learning_rate"]


@dataclass(frozen=True)
class Fed:
    """An input of the step.

    next: the output that is its value in the next step. of: the parameter that a state belongs to.
    gradient: the value of train.onnx that is a parameter's adjoint, as the optimiser gets it.
    classes, ignored: the labels of a loss are 0 to classes - 1, or `ignored`.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int | str | None, ...] | None
    next: str | None = None
    of: str | None = None
    gradient: str | None = None
    classes: int | None = None
    ignored: int | None = None


@dataclass(frozen=True)
class Manifest:
    """What a training step's files are and how to run them.

    inputs: of train.onnx, in its order. loss, metrics: outputs of train.onnx. trained: the names of
    the parameters in the original file. optimizer: its name and hyperparameters.
    """

    inputs: tuple[Fed, ...]
    loss: str
    metrics: tuple[str, ...] = ()
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""  # sha256 of the original file
    train: str = "train.onnx"
    eval: str = "eval.onnx"
    state: str = "state.safetensors"
    version: int = VERSION

    def of_role(self, *roles: Role) -> list[Fed]:
        """The inputs with one of these roles."""
        return [fed for fed in self.inputs if fed.role in roles]

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps({"format": "onnxgrad training step", **asdict(self)}, indent=2) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "manifest.json") -> Manifest:
        """Read what `to_json` wrote. Raises InputError for what is none, or of a newer version."""
        try:
            read = json.loads(text)
        except ValueError as error:
            raise InputError(f"{where} is not JSON: {error}") from None
        if not isinstance(read, dict) or read.pop("format", None) != "onnxgrad training step":
            raise InputError(f"{where} is no manifest of a training step")
        if not isinstance(read.get("version"), int) or read["version"] > VERSION:
            raise InputError(
                f"{where} is of version {read.get('version')}, this onnxgrad reads up to "
                f"{VERSION}: install a newer one"
            )
        try:
            inputs = tuple(_fed(entry) for entry in read.pop("inputs"))
            return Manifest(inputs, metrics=tuple(read.pop("metrics", ())), **read)
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"{where} is damaged: {error}") from None


def _fed(entry: Mapping[str, Any]) -> Fed:
    shape: Iterable[Any] | None = entry["shape"]
    return Fed(**{**entry, "shape": None if shape is None else tuple(shape)})
