"""`manifest.json`: which input of a training step is what, and which output becomes which input
of the next one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar

from onnxgrad.errors import InputError
from onnxgrad.grad.weights.repairs import Repairs, Tied, Untied
from onnxgrad.options import Range, checked, kinds_of
from onnxgrad.train.losses.base import OverBatch
from onnxgrad.wording import perhaps, printable_json

VERSION = 1
_FORMAT = "onnxgrad training step"
T = TypeVar("T")
Size = Annotated[int, Range(0)]
Finite = Annotated[float, Range(0, sys.float_info.max)]
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
    shape: tuple[Size | str | None, ...] | None
    next: str | None = None
    of: str | None = None
    gradient: str | None = None
    classes: int | None = None
    ignored: int | None = None
    slot: str | None = None
    group: Size | None = None
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
    gradients before they are clipped to clip_norm. over_batch: how the loss of a batch follows from
    those of its parts (`losses.base.OverBatch`); null: it does not. objective: the loss as text.
    repairs: weights of the file that are copies of a parameter, and parameters that the file lacks,
    for the way back into it.
    """

    inputs: tuple[Fed, ...]
    loss: str
    metrics: tuple[str, ...] = ()
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""  # of the original, see `train.export.digest`
    train: str = "train.onnx"
    eval: str = "eval.onnx"
    state: str = "state.safetensors"
    update: str | None = None
    accumulate: Annotated[int, Range(1)] = 1
    groups: tuple[Mapping[str, Any], ...] = ()
    clip_value: Finite | None = None
    clip_norm: Finite | None = None
    gradient_norm: str | None = None
    average: Finite | None = None
    loss_scaling: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    over_batch: OverBatch | None = None
    objective: str = ""
    repairs: Repairs = field(default_factory=Repairs)
    version: int = VERSION
    # sha256 of each graph's file with its external data, by file name; the state changes
    digests: Mapping[str, str] = field(default_factory=dict, compare=False)

    def of_role(self, *roles: Role) -> list[Fed]:
        """The inputs with one of these roles."""
        return [fed for fed in self.inputs if fed.role in roles]

    @property
    def batch(self) -> list[str]:
        """The names of the arrays of a batch."""
        return [fed.name for fed in self.of_role("batch")]

    def running(self) -> list[Fed]:
        """The states that belong to the model: running statistics, by their names in the file."""
        return [fed for fed in self.of_role("state") if fed.of == fed.name]

    def of_model(self) -> list[Fed]:
        """The inputs that a trained model consists of: parameters and running statistics."""
        return [*self.of_role("parameter"), *self.running()]

    @property
    def fixed_batch(self) -> int | None:
        """The one size of batches that the step takes; None: any."""
        return one_size(self.of_role("batch"))

    def to_json(self) -> str:
        """The file's text."""
        data = {"format": _FORMAT, **asdict(self)}
        return printable_json(data, allow_nan=True) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "manifest.json") -> Manifest:
        """Read what `to_json` wrote. Raises InputError for what is none, or of a newer version, and
        for a value of another type, by file and key.
        """
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON: {error}") from None
        if not isinstance(read, dict) or read.pop("format", None) != _FORMAT:
            raise InputError(f"{where} is no manifest of a training step: its 'format' is another")
        version = checked(int, read.get("version"), f"{where}: 'version'")
        if version > VERSION:
            raise InputError(
                f"{where} is of version {version}, this onnxgrad reads up to {VERSION}: install a "
                "newer one"
            )
        listed = checked(list[Any], read.pop("inputs", None), f"{where}: 'inputs'")
        feds = tuple(_built(Fed, entry, f"{where}: inputs[{i}]") for i, entry in enumerate(listed))
        if twice := [n for n, k in Counter(fed.name for fed in feds).items() if k > 1]:
            raise InputError(f"{where}: 'inputs' has '{twice[0]}' twice")
        repairs = _repairs(
            checked(Mapping[str, Any], read.pop("repairs", {}), f"{where}: 'repairs'"), where
        )
        found = _built(Manifest, {"inputs": feds, "repairs": repairs, **read}, f"{where}:")
        for key in ("train", "eval", "state", "update"):
            name = getattr(found, key)
            if name is not None and not is_plain(name):
                raise InputError(
                    f"{where}: '{key}' must be the name of a file in this folder, not {name!r}"
                )
        return found


def _repairs(read: Mapping[str, Any], where: str) -> Repairs:
    """The repairs of the file's parameters."""
    found: dict[str, Any] = {}
    for key, kind in (("tied", Tied), ("untied", Untied)):
        listed = checked(list[Any], read.get(key, []), f"{where}: 'repairs.{key}'")
        entries = enumerate(listed)
        found[key] = tuple(_built(kind, e, f"{where}: repairs.{key}[{i}]") for i, e in entries)
    if strange := sorted(read.keys() - found.keys()):
        raise InputError(f"{where}: 'repairs' '{strange[0]}' is unknown: it is damaged")
    return Repairs(**found)


def is_plain(name: str) -> bool:
    """Whether a name is that of a file in a folder, on every system: no path, no device."""
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\:\0")


def _built(cls: type[T], entry: Any, where: str) -> T:
    """A dataclass of an object of JSON's. Raises InputError that names file and key."""
    if not isinstance(entry, dict):
        raise InputError(f"{where} must be an object, not {repr(entry)[:80]}")
    kinds = kinds_of(cls)
    for key in entry:
        if key not in kinds:
            raise InputError(f"{where} '{key}' is unknown{perhaps(key, kinds)}: it is damaged")
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]  # both are dataclasses
    for key in needed:
        if key not in entry:
            raise InputError(f"{where} lacks '{key}': it is damaged")
    return cls(**{k: checked(kinds[k], v, f"{where} '{k}'") for k, v in entry.items()})
