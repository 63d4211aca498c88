"""`manifest.json`: which input of a training step is what, and which output becomes which input
of the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from onnxgrad.errors import InputError
from onnxgrad.wording import printable_json

VERSION = 1
Role = Literal[
    "batch", "parameter", "state", "average", "accumulated", "scaling", "step", "learning_rate",
    "seed",
]  # fmt: skip


@dataclass(frozen=True)
class Fed:
    """An input of the step.

    next: the output that is its value in the next step. of: the parameter that a state belongs to,
    and slot: what the optimiser calls it. adjoint: the value of train.onnx that is a parameter's;
    gradient: what the optimiser gets of it, averaged and clipped (in update.onnx where there is
    one, else in train.onnx). group: the index of a parameter's group. classes, ignored: the labels
    of a loss are 0 to classes - 1, or `ignored`; unread: so many labels at the beginning of a
    sequence belong to no score. A running statistic is a state `of` itself; a seed is another
    number in each run.
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
    slot: str | None = None
    group: int | None = None
    adjoint: str | None = None
    unread: int | None = None


def one_size(feds: Iterable[Fed]) -> int | None:
    """The number of examples, where the first input that fixes it does; None: any."""
    sizes = (fed.shape[0] for fed in feds if fed.shape)
    return next((size for size in sizes if isinstance(size, int)), None)


@dataclass(frozen=True)
class Manifest:
    """What a training step's files are and how to run them.

    inputs: of train.onnx and update.onnx, each of which takes those that it has; an output that is
    the `next` of one is its value from then on. loss, metrics: outputs of train.onnx. With
    accumulate above 1, train.onnx takes a micro-batch and adds its gradients up, and after each so
    many update.onnx is run; there is no such file otherwise. The input `step` is the number of the
    update, from 1 on. optimizer: its name and hyperparameters; so each of groups, with the factor
    of the learning rate, the last being all other weights. schedule: is inside, and then no input
    is the learning rate. gradient_norm: the output, of the file that updates, with the norm of all
    gradients before they are clipped to clip_norm.
    """

    inputs: tuple[Fed, ...]
    loss: str
    metrics: tuple[str, ...] = ()
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""  # of the original, see `train.digest`
    train: str = "train.onnx"
    eval: str = "eval.onnx"
    state: str = "state.safetensors"
    update: str | None = None
    accumulate: int = 1
    groups: tuple[Mapping[str, Any], ...] = ()
    clip_value: float | None = None
    clip_norm: float | None = None
    gradient_norm: str | None = None
    average: float | None = None
    loss_scaling: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    version: int = VERSION

    def of_role(self, *roles: Role) -> list[Fed]:
        """The inputs with one of these roles."""
        return [fed for fed in self.inputs if fed.role in roles]

    def running(self) -> list[Fed]:
        """The states that belong to the model: running statistics, by their names in the file."""
        return [fed for fed in self.of_role("state") if fed.of == fed.name]

    def of_model(self) -> list[Fed]:
        """What a trained model consists of: parameters and running statistics."""
        return [*self.of_role("parameter"), *self.running()]

    @property
    def fixed_batch(self) -> int | None:
        """The one size of batches that the step takes; None: any."""
        return one_size(self.of_role("batch"))

    def to_json(self) -> str:
        """The file's text."""
        return printable_json({"format": "onnxgrad training step", **asdict(self)}) + "\n"

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
            metrics, groups = (tuple(read.pop(key, ())) for key in ("metrics", "groups"))
            return Manifest(inputs, metrics=metrics, groups=groups, **read)
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"{where} is damaged: {error}") from None


def _fed(entry: Mapping[str, Any]) -> Fed:
    shape: Iterable[Any] | None = entry["shape"]
    return Fed(**{**entry, "shape": None if shape is None else tuple(shape)})
