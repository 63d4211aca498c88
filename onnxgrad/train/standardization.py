"""Standardises inputs inside of the model: (x - mean) / deviation, measured on the training data.

Mean and deviation are statistics of the training step, as the running ones of BatchNormalization
are: they are fed, saved and exported with the weights, but not trained. A deviation of 0 becomes 1,
so that a constant feature is 0.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load_in_place, load_own
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.name_lists import names_among
from onnxgrad.train.batch_normalization import Running
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.update.emission import ask_for, returned
from onnxgrad.wording import option, perhaps

OPTION = "standardize"  # in `Manifest.options`
_SEPARATOR = ", "
_OLDEST_OPSET = 7  # before, operands were not broadcast


def inputs_of(manifest: Manifest) -> list[str]:
    """Returns the inputs that a step standardises, each perhaps with its axis."""
    text = (manifest.options or {}).get(OPTION)
    return text.split(_SEPARATOR) if text else []


def as_option(inputs: Sequence[str]) -> str:
    """Returns the text from which `inputs_of` reads the inputs."""
    return _SEPARATOR.join(inputs)


def with_subgraphs(model: ModelLike, manifest: Manifest) -> Program:
    """Returns the model that receives trained values: with a subgraph at each input that the step
    standardises. Raises InputError.
    """
    inputs = inputs_of(manifest)
    if not inputs:
        return load_in_place(model)
    program = load_own(model, in_place=True)
    standardize(program, inputs)
    return program


@dataclass(frozen=True)
class _Axes:
    """The texts NAME and NAME=AXIS of inputs."""

    inputs: Container[str]

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and (text in self.inputs or _parsed(text)[0] in self.inputs)


def standardized_of(program: Program, given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the texts NAME and NAME=AXIS of an option; a name may contain commas."""
    return names_among(given, _Axes({v.name for v in program.main.inputs}), "standardize")


def standardize(program: Program, inputs: Sequence[str]) -> None:
    """Inserts a subgraph at each of these inputs, NAME or NAME=AXIS; each index along the axis has
    its own mean and deviation. The axis is 1 by default; an input with one axis has one mean.
    Raises InputError for an input without floats or without a fixed size along the axis.
    """
    if inputs and program.opset < _OLDEST_OPSET:
        raise InputError(f"{_flag()} needs opset {_OLDEST_OPSET}, not {program.opset}")
    own = {v.name: v for v in program.main.inputs if v.initializer is None}
    for text in inputs:
        name, axis = _parsed(text)
        if name not in own:
            known = ", ".join(own)
            raise InputError(
                f"{_flag()} '{name}' is not an input of the model{perhaps(name, own)}: choose from "
                f"{known}"
            )
        _insert(own[name], _shape(own[name], axis))


def _flag() -> str:
    return option("--standardize", "standardize:")


def _parsed(text: str) -> tuple[str, int]:
    name, _, axis = text.rpartition("=")
    known = bool(name) and axis.removeprefix("-").isdecimal()
    return (name, int(axis)) if known else (text, 1)


def _shape(v: Var, axis: int) -> tuple[int, ...]:
    """Returns the shape of the mean, which broadcasts to the input."""
    if v.dtype is None or numpy_dtype(v.dtype).name not in ("float16", "float32", "float64"):
        raise InputError(f"{_flag()} '{v.name}' is {v.type}: only floats are standardised")
    if v.shape is None:
        raise InputError(f"{_flag()} the rank of '{v.name}' is not known")
    if len(v.shape) < 2:
        return ()
    at = axis + len(v.shape) if axis < 0 else axis
    size = v.shape[at] if 0 < at < len(v.shape) else None
    if not isinstance(size, int):
        raise InputError(
            f"{_flag()} '{v.name}' is {v.type}, without a fixed size along axis {axis}: choose "
            f"another axis, {v.name}=AXIS"
        )
    return (size, *[1] * (len(v.shape) - at - 1))


def _names(name: str) -> tuple[str, str]:
    return f"{name}.mean", f"{name}.deviation"


def _insert(v: Var, shape: tuple[int, ...]) -> None:
    block, found = v.block, []
    readers = [(user, i) for user in v.users for i in user.places(v)]
    for name, value in zip(_names(v.name), (0, 1), strict=True):
        if name in block.program.names:
            raise InputError(
                f"{_flag()} the model has a value '{name}': if '{v.name}' is standardised there, "
                "leave it out"
            )
        array = np.full(shape, value, numpy_dtype(v.dtype))
        found.append(block.add_initializer(numpy_helper.from_array(array, name)))
    with emitting(block, made_by=OPTION):
        result = op.Div(op.Sub(v, found[0]), found[1])
    for user, i in readers:
        user.block.set_operand(user, i, result)


def carried(program: Program, inputs: Sequence[str]) -> list[Running]:
    """Makes means and deviations inputs of a step, whose next values are the same."""
    block = program.main
    names = [name for text in inputs for name in _names(_parsed(text)[0])]
    first = {name: np.array(block.initializers[name].const) for name in names}
    ask_for(block, names)
    fed = {v.name: v for v in block.inputs}
    return [Running(n, returned(block, fed[n], f"{n}.new"), first[n]) for n in names]


def measured(
    batches: Iterable[Mapping[str, Array]], inputs: Sequence[str], held: Mapping[str, Array]
) -> dict[str, Array]:
    """Returns means and deviations over all batches, in the dtypes and shapes of `held`. They are
    computed in float64 and merged by Chan's formula. Raises InputError for values that are not
    finite.
    """
    names = [_parsed(text)[0] for text in inputs]
    moments: dict[str, _Moments] = {}
    for batch in batches:
        for name in names:
            if name in batch:  # a missing one is refused by the first step
                part = _Moments.of(np.asarray(batch[name]), held[_names(name)[0]].shape)
                moments[name] = part if name not in moments else moments[name].merged(part)
    found = {}
    for name, seen in moments.items():
        deviation = np.sqrt(seen.squares / seen.count)
        if not np.isfinite(deviation).all():
            raise InputError(f"{_flag()} '{name}' of the data has values that are not finite")
        for key, value in zip(_names(name), (seen.mean, deviation), strict=True):
            found[key] = value.reshape(held[key].shape).astype(held[key].dtype)
        constant = (seen.least == seen.most).reshape(found[key].shape) | (found[key] == 0)
        found[key] = np.where(constant, found[key].dtype.type(1), found[key])
    return found


@dataclass(frozen=True)
class _Moments:
    """The number of elements, their mean, the sum of squared distances from it, the least and the
    largest, for each index along an axis.
    """

    count: int
    mean: Any
    squares: Any
    least: Any
    most: Any

    @staticmethod
    def of(array: Array, shape: tuple[int, ...]) -> _Moments:
        """Returns the moments of a batch. shape: that of the mean."""
        axis = array.ndim - len(shape)
        rows = np.moveaxis(array, axis, 0) if shape else array
        rows = rows.astype(np.float64).reshape(shape[0] if shape else 1, -1)
        mean = rows.mean(1)
        squares = np.square(rows - mean[:, None]).sum(1)
        return _Moments(rows.shape[1], mean, squares, rows.min(1), rows.max(1))

    def merged(self, other: _Moments) -> _Moments:
        """Returns the moments of both together."""
        count = self.count + other.count
        step = other.mean - self.mean
        squares = self.squares + other.squares + step * step * (self.count * other.count / count)
        return _Moments(
            count,
            self.mean + step * (other.count / count),
            squares,
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
        )
