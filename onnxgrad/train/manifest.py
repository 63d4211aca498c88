"""Reads and writes `manifest.json`: the role of each input of a training step, and the outputs that
become inputs of the next step.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from onnxgrad.errors import InputError
from onnxgrad.grad.weights.repairs import Repairs, Tied, Untied
from onnxgrad.options import Range, checked, kinds_of
from onnxgrad.train.losses.base import OverBatch
from onnxgrad.train.losses.sums import Sums
from onnxgrad.wording import perhaps, printable_json

VERSION = 3
SCHEMA = Path(__file__).with_name("manifest.schema.json")
# the keys that name files with graphs
GRAPHS = ("train", "eval", "predict", "update")
_FORMAT = "onnxgrad training step"
T = TypeVar("T")
Size = Annotated[int, Range(0)]
Finite = Annotated[float, Range(0, sys.float_info.max)]
Role = Literal[
    "batch", "parameter", "statistic", "state", "average", "accumulated", "counted", "scaling",
    "step", "learning_rate", "seed",
]  # fmt: skip


def _keys(role: Role) -> dict[str, bool]:
    listed = _SCHEMA["properties"]["inputs"]["properties"][role]
    entry = _SCHEMA["$defs"][listed["items"]["$ref"].removeprefix("#/$defs/")]
    return {key: key in entry["required"] for key in entry["properties"]}


_SCHEMA: Any = json.loads(SCHEMA.read_text(encoding="utf-8"))
# the keys of an input by its role, in the order of the file, and whether each must be there
KEYS: Mapping[Role, Mapping[str, bool]] = {role: _keys(role) for role in get_args(Role)}
_ANY = "?"  # a size that is unknown
_NONE = "none"  # in a list of options


@dataclass(frozen=True)
class Fed:
    """An input of the step.

    next: the output with its value in the next step. of: the parameter to which a state belongs, or
    of which an array of the batch is an earlier value. slot: the state's name in the optimiser.
    adjoint: the value of train.onnx with a parameter's adjoint. gradient: the averaged and clipped
    gradient that the optimiser receives, in update.onnx if it exists, else in train.onnx. group:
    the index of a parameter's group. classes, ignored: labels of a loss are 0 to classes - 1, or
    `ignored`. unread: the number of labels at the beginning of a sequence that have no score.
    weights: the class weights, by whose sum a mean over labels divides. zeros: the first value is
    zeros and is not stored. The value of a seed differs in each run.
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
    weights: tuple[Annotated[float, Range(-sys.float_info.max, sys.float_info.max)], ...] | None = (
        None
    )
    zeros: bool = field(default=False, compare=False)


def one_size(feds: Iterable[Fed]) -> int | None:
    """Returns the number of examples that the first input with a fixed size has; None if any number
    is accepted.
    """
    sizes = (fed.shape[0] for fed in feds if fed.shape and fed.of is None)
    return next((size for size in sizes if isinstance(size, int)), None)


@dataclass(frozen=True)
class Manifest:
    """The files of a training step and how to run them.

    inputs: those of train.onnx and update.onnx together; the `next` output of an input is its value
    in the next run. loss, metrics: outputs of train.onnx. accumulate: if
    above 1, train.onnx reads a micro-batch and adds its gradients up, and update.onnx runs after
    this many of them; otherwise there is no update.onnx. accumulate_by: the weights of
    micro-batches in the loss and the gradient of a step, their `divisor` ("labels") or 1; None for
    one batch. predict: eval.onnx without the loss and
    the inputs that only the loss reads; None if the model returns only its loss. The input `step`
    is the number of the update, from 1 on. optimizer: name and hyperparameters. groups: the same
    for each group, with its factor of the learning rate; the last group has all other weights.
    schedule: computed in the graph, which then has no input for the learning rate. gradient_norm:
    the output, of the file that updates, with the norm of all gradients before clipping to
    clip_norm. over_batch: how the loss of a batch follows from the losses of its parts
    (`losses.base.OverBatch`), or None if it does not. sums: the outputs of eval.onnx from which the
    loss over several batches follows. divisor: the output of train.onnx with the number of labels
    that count, or the sum of their weights; None if the loss is no mean over labels. objective: the
    loss as text. options: options of the step that change its gradient and have no key of their
    own. repairs: weights of the file that are copies of a parameter, and parameters that the file
    lacks, for `export`.
    """

    inputs: tuple[Fed, ...]
    loss: str
    metrics: tuple[str, ...] = ()
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""  # of the original, see `train.export.digest`
    train: str = "train.onnx"
    eval: str = "eval.onnx"
    state: str = "state.safetensors"
    predict: str | None = None
    update: str | None = None
    accumulate: Annotated[int, Range(1)] = 1
    accumulate_by: Literal["labels", "batches"] | None = None
    groups: tuple[Mapping[str, Any], ...] = ()
    clip_value: Finite | None = None
    clip_norm: Finite | None = None
    gradient_norm: str | None = None
    average: Finite | Mapping[str, Any] | None = None
    loss_scaling: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    over_batch: OverBatch | None = None
    sums: tuple[Sums, ...] = ()
    divisor: str | None = None
    objective: str = ""
    options: Mapping[str, str] | None = None
    repairs: Repairs = field(default_factory=Repairs)
    version: int = VERSION
    # sha256 of each graph's file with its external data, by file name; the state changes
    digests: Mapping[str, str] = field(default_factory=dict, compare=False)

    def of_role(self, *roles: Role) -> list[Fed]:
        """Returns the inputs with one of these roles."""
        return [fed for fed in self.inputs if fed.role in roles]

    @property
    def elements(self) -> int:
        """The number of trained elements."""
        sizes = (
            [d for d in fed.shape or () if isinstance(d, int)] for fed in self.of_role("parameter")
        )
        return sum(map(math.prod, sizes))

    @property
    def batch(self) -> list[str]:
        """The names of the arrays of a batch."""
        return [fed.name for fed in self.of_role("batch")]

    def places(self) -> dict[str, str]:
        """The key of each input in the file, by its name."""
        count = Counter[Role]()
        found = {}
        for fed in self.inputs:
            found[fed.name] = f"inputs.{fed.role}[{count[fed.role]}]"
            count[fed.role] += 1
        return found

    def running(self) -> list[Fed]:
        """The running statistics of the model, by their names in the file."""
        return self.of_role("statistic")

    def of_model(self) -> list[Fed]:
        """The inputs that belong to a trained model: parameters and running statistics."""
        return [*self.of_role("parameter"), *self.running()]

    @property
    def fixed_batch(self) -> int | None:
        """The only batch size that the step accepts; None if any."""
        return one_size(self.of_role("batch"))

    def to_json(self) -> str:
        """Returns the text of the file: inputs by role, without keys that have no value."""
        inputs: dict[Role, list[Any]] = {role: [] for role in KEYS}
        for fed in self.inputs:
            entry = {key: getattr(fed, key) for key in KEYS[fed.role]}
            if fed.shape is not None:
                entry["shape"] = [_ANY if size is None else size for size in fed.shape]
            inputs[fed.role].append({k: v for k, v in entry.items() if v is not False})
        data = {
            "format": _FORMAT,
            "version": self.version,
            **asdict(self),
            "inputs": {role: listed for role, listed in inputs.items() if listed},
        }
        return printable_json(_without_none(data)) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "manifest.json") -> Manifest:
        """Reads the text of `to_json`. Raises InputError, with file and key, for anything else,
        another version, and a value of another type.
        """
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON: {error}") from None
        if not isinstance(read, dict) or read.get("format") != _FORMAT:
            raise InputError(
                f"{where} is not the manifest of a training step: 'format' must be '{_FORMAT}'"
            )
        version = checked(int, read.get("version"), f"{where}: 'version'")
        if version != VERSION:
            what = "install a newer one" if version > VERSION else "build the step again"
            raise InputError(
                f"{where} is of version {version}, this onnxgrad reads version {VERSION}: {what}"
            )
        _refuse_null(read, where)
        if lacking := [key for key in _SCHEMA["required"] if key not in read]:
            raise InputError(f"{where} lacks '{lacking[0]}': it is damaged")
        del read["format"]
        given = checked(Mapping[str, Any], read.pop("inputs"), f"{where}: 'inputs'")
        feds = _inputs(given, where)
        if twice := [n for n, k in Counter(fed.name for fed in feds).items() if k > 1]:
            raise InputError(f"{where}: 'inputs' has '{twice[0]}' twice")
        repairs = _repairs(
            checked(Mapping[str, Any], read.pop("repairs", {}), f"{where}: 'repairs'"), where
        )
        listed = checked(list[Any], read.pop("sums"), f"{where}: 'sums'")
        sums = tuple(_built(Sums, e, f"{where}: sums[{i}]") for i, e in enumerate(listed))
        read |= {key: _with_none(read[key]) for key in ("optimizer", "groups") if key in read}
        found = _built(
            Manifest, {"inputs": feds, "repairs": repairs, "sums": sums, **read}, f"{where}:"
        )
        for key in (*GRAPHS, "state"):
            name = getattr(found, key)
            if name is not None and not is_plain(name):
                raise InputError(
                    f"{where}: '{key}' must be the name of a file in this folder, not {name!r}"
                )
        return found


def in_order(feds: Iterable[Fed]) -> tuple[Fed, ...]:
    """Returns the inputs in the order of their roles, as in the file."""
    order = list(KEYS)
    return tuple(sorted(feds, key=lambda fed: order.index(fed.role)))


def _inputs(given: Mapping[str, Any], where: str) -> tuple[Fed, ...]:
    """Returns the inputs of each role. Raises InputError."""
    found = []
    for role, listed in given.items():
        if role not in KEYS:
            raise InputError(f"{where}: 'inputs' '{role}' is unknown{perhaps(role, KEYS)}")
        keys = KEYS[checked(Role, role, where)]
        for i, entry in enumerate(checked(list[Any], listed, f"{where}: 'inputs.{role}'")):
            at = f"{where}: inputs.{role}[{i}]"
            made = _built(Fed, {**_object(entry, at), "role": role}, at)
            if strange := [k for k in entry if k not in keys]:
                raise InputError(f"{at} '{strange[0]}' is not a key of this role: it is damaged")
            if lacking := [k for k, needed in keys.items() if needed and k not in entry]:
                raise InputError(f"{at} lacks '{lacking[0]}': it is damaged")
            found.append(made)
    return in_order(found)


def _object(entry: Any, where: str) -> dict[str, Any]:
    """Returns the entry of an input. Raises InputError."""
    if not isinstance(entry, dict):
        raise InputError(f"{where} must be an object, not {repr(entry)[:80]}")
    shape = entry.get("shape")
    sizes = [None if n == _ANY else n for n in shape] if isinstance(shape, list) else shape
    return {**entry, "shape": sizes}


def _without_none(value: Any) -> Any:
    """Returns the value without None: its key is left out, and in a list it becomes a word. NaN and
    Inf become words, too.
    """
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_NONE if v is None else _without_none(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _with_none(value: Any) -> Any:
    """Returns the value with None in place of its word in lists."""
    if isinstance(value, dict):
        return {k: _with_none(v) for k, v in value.items()}
    if isinstance(value, list):
        return [None if v == _NONE else _with_none(v) for v in value]
    return value


def _refuse_null(value: Any, where: str, key: str = "") -> None:
    """Raises InputError for a null, with its key."""
    if value is None:
        raise InputError(f"{where}: '{key}' is null: leave the key out")
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_null(inner, where, f"{key}.{name}".lstrip("."))
    if isinstance(value, list):
        for i, inner in enumerate(value):
            _refuse_null(inner, where, f"{key}[{i}]")


def _repairs(read: Mapping[str, Any], where: str) -> Repairs:
    """Returns the repairs of parameters."""
    found: dict[str, Any] = {}
    for key, kind in (("tied", Tied), ("untied", Untied)):
        listed = checked(list[Any], read.get(key, []), f"{where}: 'repairs.{key}'")
        if kind is Untied:  # None is left out
            listed = [{"of": None, **e} if isinstance(e, dict) else e for e in listed]
        entries = enumerate(listed)
        found[key] = tuple(_built(kind, e, f"{where}: repairs.{key}[{i}]") for i, e in entries)
    if strange := sorted(read.keys() - found.keys()):
        raise InputError(f"{where}: 'repairs' '{strange[0]}' is unknown: it is damaged")
    return Repairs(**found)


def is_plain(name: str) -> bool:
    """Whether this is a plain file name on every system: not a path, not a device."""
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\:\0")


def _built(cls: type[T], entry: Any, where: str) -> T:
    """Returns a dataclass made from a JSON object. Raises InputError, which names file and key."""
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
