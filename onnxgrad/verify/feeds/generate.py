"""Generates valid feeds: token ids below the vocabulary, masks of 0 and 1, lengths within their
sequence, images in [0, 1].
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.verify.feeds.data_flow import DataFlow
from onnxgrad.verify.feeds.dims import (
    dim_plans,
    rank_of,
    required_inputs,
    shape_at,
    shape_of,
    symbols_in,
)
from onnxgrad.verify.feeds.distinct_indices import drawn
from onnxgrad.verify.feeds.edge_cases import Edges, Slot, Variation, edged, varied
from onnxgrad.verify.feeds.sizes_reached import decides_sizes
from onnxgrad.verify.feeds.value_bounds import Uses, uses_of
from onnxgrad.verify.values import Value
from onnxgrad.wording import input_option, option, shape_text

_MAX_ELEMENTS = 2**28  # no generated input is larger than a gigabyte
_MOST_AXES = 64
_ANY = -math.inf, math.inf
_LIMITS = {"mask": (0.0, 1.0), "count": (0.0, 64.0), "length": (0.0, 64.0)}
_WORDS = ("alpha", "beta", "gamma", "delta", "one two", "", "Zürich", "42")


def feeds_for(
    model: onnx.ModelProto,
    *,
    seed: int,
    dims: Mapping[str, int] | None = None,
    given: Mapping[str, Value] | None = None,
    edges: Edges | None = None,
) -> dict[str, Value]:
    """Returns a value for every input without a default. The same seed, sizes and model give the
    same values.

    `dims` maps symbols to sizes; the first plan of `dims.dim_plans` fills in the others. `given`
    are values that take precedence and whose shapes fix their symbols. `edges` generates an edge
    case. Raises InputError, which names the input or the option to pass, if no value can be
    generated.
    """
    return Feeder(model).feeds(seed=seed, dims=dims, given=given, edges=edges)


class Feeder:
    """Generates feeds of one model; the uses of its inputs are traced once for all feeds."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    @functools.cached_property
    def flow(self) -> DataFlow:
        """The data flow of the model."""
        return DataFlow(self.model)

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        return dim_plans(self.model)[0]

    def trace(self) -> None:
        """Finds the inputs that decide sizes before cases vary others."""
        for value in self.flow.inputs:
            decides_sizes(self.flow, value.name)

    def feeds(
        self,
        *,
        seed: int,
        dims: Mapping[str, int] | None = None,
        given: Mapping[str, Value] | None = None,
        edges: Edges | None = None,
        how: Variation | None = None,
    ) -> dict[str, Value]:
        """Returns feeds as `feeds_for` does; `how` varies the usual values."""
        if given is not None and not isinstance(given, Mapping):
            raise InputError(
                f"inputs are arrays by the names of the model's inputs, not {type(given).__name__}"
            )
        feeds = dict(given or {})
        inputs = {value.name: value for value in self.model.graph.input}
        for name, value in feeds.items():
            if name not in inputs:
                raise InputError(
                    f"{_given(name)}: the model has no input of this name (inputs: "
                    f"{', '.join(inputs)})"
                )
            _check_given(inputs[name], value)
        sizes = self._sizes | dict(dims or {}) | bound_by(self.model, feeds)
        maker: _Maker | None = None
        for turn, value in enumerate(required_inputs(self.model.graph)):
            if value.name not in feeds:
                maker = maker or _Maker(self.flow.at(sizes), sizes, seed, edges, how)
                feeds[value.name] = maker.make(value.name, value.type, turn)
        return {name: feeds[name] for name in inputs if name in feeds}

    def limits(self, name: str, dims: Mapping[str, int]) -> tuple[float, float]:
        """Returns the interval of values that make sense for an input: the declared one, 0 and 1
        for a mask, small numbers for counts and lengths, else any numbers.
        """
        slot = next((s for s in self._slots(dims) if s.name == name), None)
        if slot is None:
            return _ANY
        if slot.uses.declared:
            return slot.low, slot.high
        named = slot.kind != "mask" or "mask" in name.lower()
        return _LIMITS[slot.kind] if named and slot.kind in _LIMITS else _ANY

    def varied(
        self, feeds: Mapping[str, Value], dims: Mapping[str, int], how: Variation
    ) -> dict[str, Value]:
        """Returns given feeds, varied as generated ones are."""
        made = dict(feeds)
        for slot in self._slots(dims):
            value = made.get(slot.name)
            if isinstance(value, np.ndarray) and not decides_sizes(self.flow, slot.name):
                with np.errstate(over="ignore"):
                    made[slot.name] = np.asarray(varied(value, slot, how)).astype(value.dtype)
        return made

    def _slots(self, dims: Mapping[str, int]) -> Iterator[Slot]:
        """Yields the slots of the tensors of numbers."""
        sizes = self._sizes | dict(dims)
        for turn, value in enumerate(required_inputs(self.model.graph)):
            kind = value.type.tensor_type
            if kind.elem_type not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
                shape = shape_at(value.name, kind, sizes)
                dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
                uses = uses_of(self.flow.at(sizes), value.name)
                yield _slot(value.name, shape, dtype, uses, turn)


def bound_by(model: onnx.ModelProto, given: Mapping[str, Value]) -> dict[str, int]:
    """Returns the sizes of symbols, and the unknown ranks, that the given arrays fix."""
    found: dict[str, int] = {}
    for value in model.graph.input:
        array = given.get(value.name)
        if not isinstance(array, np.ndarray) or not value.type.HasField("tensor_type"):
            continue
        shape = shape_of(value.name, value.type.tensor_type)
        if shape is None:
            found[rank_of(value.name)] = array.ndim
        for dim, size in zip(shape or (), array.shape, strict=False):
            if isinstance(dim, str) and symbols_in(dim) == {dim}:
                found[dim] = size
    return found


def _given(name: str) -> str:
    """Returns the option that sets the value of an input, for messages."""
    return option(f"--input {name}", f"inputs[{name!r}]")


def _check_given(value: onnx.ValueInfoProto, array: Value) -> None:
    """Checks that a given tensor has the declared dtype, rank and fixed sizes, because the messages
    of onnxruntime are hard to read. Raises InputError.
    """
    if not value.type.HasField("tensor_type"):
        return
    if not isinstance(array, (np.ndarray, np.generic, list, bool, int, float, str)):
        raise InputError(f"{_given(value.name)}: expected an array, not {type(array).__name__}")
    if not isinstance(array, np.ndarray):
        return
    kind = value.type.tensor_type
    if kind.elem_type == onnx.TensorProto.STRING:
        fits = array.dtype.kind in "OUS"
    else:
        fits = array.dtype == onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if not fits:
        wanted = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        raise InputError(
            f"{_given(value.name)}: the model wants {wanted}, it holds {array.dtype.name}"
        )
    shape = shape_of(value.name, kind)
    if shape is None:
        return
    if len(shape) != array.ndim or any(
        isinstance(d, int) and d != s for d, s in zip(shape, array.shape, strict=True)
    ):
        raise InputError(
            f"{_given(value.name)}: the model wants shape {shape_text(shape)}, "
            f"it holds {shape_text(array.shape)}"
        )


@dataclass
class _Maker:
    """Generates the values of one set of feeds."""

    flow: DataFlow
    sizes: Mapping[str, int]
    seed: int
    edges: Edges | None
    how: Variation | None = None

    def make(self, name: str, kind: onnx.TypeProto, turn: int) -> Value:
        """Returns a value for an input that has `turn` inputs before it. Raises InputError."""
        return self._of_type(name, kind, turn, self._generator(name), self._generator(name, 1))

    def _generator(self, name: str, *more: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode()), *more])

    def _of_type(
        self,
        name: str,
        kind: onnx.TypeProto,
        turn: int,
        rng: np.random.Generator,
        edge_rng: np.random.Generator,
    ) -> Value:
        which = kind.WhichOneof("value")
        if which == "tensor_type":
            return self._tensor(name, kind.tensor_type, turn, rng, edge_rng)
        if which == "sequence_type":
            inner = kind.sequence_type.elem_type
            count = 2 if self.edges is not None and self.edges.sizes else 3
            return [self._of_type(name, inner, turn + i, rng, edge_rng) for i in range(count)]
        if which == "optional_type":
            return self._of_type(name, kind.optional_type.elem_type, turn, rng, edge_rng)
        raise InputError(
            f"no value can be made for the input {name!r} (a {which or 'value without a type'}); "
            f"set it with {input_option(name)}"
        )

    def _tensor(
        self,
        name: str,
        kind: onnx.TypeProto.Tensor,
        turn: int,
        rng: np.random.Generator,
        edge_rng: np.random.Generator,
    ) -> Value:
        shape = shape_at(name, kind, self.sizes)
        if len(shape) > _MOST_AXES:
            raise InputError(
                f"input {name!r} has {len(shape)} axes, more than the {_MOST_AXES} of "
                "numpy's arrays"
            )
        if math.prod(shape) > _MAX_ELEMENTS:
            raise InputError(
                f"input {name!r} would have shape {shape_text(shape)}; choose smaller sizes with "
                f"{option('--dim', 'dims=')}, or set it with {input_option(name)}"
            )
        text = kind.elem_type == onnx.TensorProto.STRING
        dtype = np.dtype(object) if text else onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        slot = _slot(name, shape, dtype, uses_of(self.flow, name), turn)
        usual = np.asarray(_DRAWN[slot.kind](slot, shape, rng))
        if slot.kind == "mask" and self._is_behind_a_past(shape):
            usual = usual[..., ::-1]  # padding in front: the new tokens are behind the past ones
        made = usual if self.edges is None else edged(usual, slot, self.edges, edge_rng)
        if self.how is not None and not (self.how.far and decides_sizes(self.flow, name)):
            made = varied(made, slot, self.how)
        with np.errstate(over="ignore"):  # a wide value may be infinite in a narrow dtype
            return np.asarray(made).astype(dtype)

    def _is_behind_a_past(self, shape: Sequence[int]) -> bool:
        """Whether the last axis counts past and new tokens together, by the names of sizes."""
        past = [size for symbol, size in self.sizes.items() if "past" in symbol.lower() and size]
        return len(shape) > 1 and any(shape[-1] - n in self.sizes.values() for n in past)


def _slot(name: str, shape: list[int], dtype: np.dtype[Any], uses: Uses, turn: int) -> Slot:
    """Returns the kind and the interval of the values that an input accepts, by its type, its uses
    and its name.
    """
    text = name.lower()
    whole = dtype.kind in "iu" or "int" in dtype.name
    low, high = _whole_bounds(uses, dtype) if whole else (uses.low, uses.high)
    mask = "mask" in text or (uses.boolean and not (whole and uses.bounded))
    if dtype.kind in "OcM":
        kind = "text" if dtype.kind == "O" else "complex"
    elif uses.declared:
        kind = "whole" if whole else "real"
    elif whole and uses.equal_to and not uses.tables and math.prod(shape) == 1:
        kind = "switch"  # a switch, such as a sampling rate: a value that the model knows
    elif dtype.kind == "b" or mask:
        kind = "mask"
    elif whole and "position" in text and shape:
        kind = "position"
        if uses.count and not uses.bounded:
            high = shape[-1] - 1  # they are counted themselves: the table is as long as they need
    elif whole:
        kind, low, high = _whole_kind(text, shape, dtype, uses, (int(low), int(high)))
    else:
        kind, low, high = _real_kind(text, shape, uses)
    ends = (int(_limits(dtype).min), int(_limits(dtype).max)) if whole else (0, 1)
    return Slot(name, kind, low, max(low, high), uses, turn, ends)


def _whole_kind(
    text: str, shape: list[int], dtype: np.dtype[Any], uses: Uses, bounds: tuple[int, int]
) -> tuple[str, int, int]:
    """Returns the kind and the interval of integers: a time step of diffusion, bytes of an image, a
    length, a count, or any integers.
    """
    if uses.bounded:
        return "count" if uses.count else "length" if "len" in text else "whole", *bounds
    if "timestep" in text:
        return "whole", 0, 999
    image = dtype == np.uint8 and len(shape) in (3, 4)
    return "count" if uses.count else "whole", *((0, 255) if image else bounds)


def _real_kind(text: str, shape: list[int], uses: Uses) -> tuple[str, float, float]:
    """Returns the kind and the interval of floats: a time step, a count, colours of an image, or
    any numbers.
    """
    if uses.low == -math.inf or uses.high == math.inf:
        if "timestep" in text:
            return "timestep", uses.low, uses.high
        if uses.count:
            return "count", uses.low, uses.high
        if len(shape) == 4 and (shape[1] in (1, 3, 4) or shape[3] in (1, 3, 4)):
            return "real", 0.0, 1.0
    return "real", uses.low, uses.high


def _count(slot: Slot, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    usual = slot.uses.least_count
    return np.full(shape, usual if not slot.uses.bounded else max(slot.low, min(usual, slot.high)))


def _text(uses: Uses, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Returns words that the model knows, one in four unknown, or sentences of three words."""
    known = sorted(set(uses.words)) or _WORDS

    def word() -> str:
        return str(rng.choice(known if rng.random() < 0.75 else _WORDS))

    made = np.empty(shape, object)
    for at in np.ndindex(*shape):
        made[at] = " ".join(word() for _ in range(3)) if uses.sentences else word()
    return made


def _real(slot: Slot, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if slot.uses.images is not None and shape[-1:] == [5]:
        return _regions(slot.uses.images, shape[:-1], rng)
    if slot.low > -math.inf and slot.high < math.inf:
        return rng.uniform(slot.low, slot.high, shape)
    return rng.standard_normal(shape)


def _regions(
    images: tuple[int, int, int], shape: list[int], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Returns regions of images: the image, left, top, right and bottom."""
    count, height, width = images
    ends = np.sort(rng.uniform(size=[*shape, 2, 2]), axis=-2) * [width, height]
    return np.concatenate([rng.integers(0, count, [*shape, 1]), ends.reshape(*shape, 4)], axis=-1)


_DRAWN: dict[str, Callable[[Slot, list[int], np.random.Generator], Any]] = {
    "text": lambda slot, shape, rng: _text(slot.uses, shape, rng),
    "complex": lambda slot, shape, rng: (
        rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    ),
    "mask": lambda slot, shape, rng: _mask(slot, shape, rng),
    "switch": lambda slot, shape, rng: np.full(shape, slot.uses.equal_to[0]),
    "position": lambda slot, shape, rng: np.broadcast_to(
        np.minimum(np.arange(shape[-1]), int(slot.high)), shape
    ),
    "count": _count,
    "timestep": lambda slot, shape, rng: np.floor(rng.uniform(0, 1000, shape)),
    "length": lambda slot, shape, rng: np.full(shape, int(slot.high)),
    "whole": lambda slot, shape, rng: _whole(slot, shape, rng),
    "real": _real,
}


def _whole(slot: Slot, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Returns integers of the slot's interval. At least one index is none that a consumer singles
    out, such as the label that a loss ignores: a loss of ignored labels alone proves nothing.
    """
    low, high = int(slot.low), int(slot.high)
    distinct = slot.uses.distinct
    places = None if distinct is None or low else drawn(distinct.below(high + 1), shape, rng)
    if places is not None:
        return places
    made = rng.integers(low, high, shape, dtype=np.int64, endpoint=True)
    special = {int(v) for v in slot.uses.equal_to} if slot.uses.tables else set[int]()
    if made.size and special and np.isin(made, list(special)).all():
        others = (v for v in range(low, min(high, low + len(special)) + 1) if v not in special)
        made.reshape(-1)[0] = next(others, low)
    return made


def _mask(slot: Slot, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Returns rows with 1 in front and 0 after it, as padding makes them. Every row with room has
    both values, so that it has valid elements whether 1 means "keep" or "leave out". A scalar flag
    (`training_mode`, `use_cache`) is 0.
    """
    if math.prod(shape) <= 1:
        return np.full(shape, int("mask" in slot.name.lower() and bool(shape)))
    if shape[-1] <= 1:
        return 1 - np.arange(math.prod(shape)).reshape(shape) % 2
    lengths = rng.integers(max(1, shape[-1] // 2), shape[-1], [*shape[:-1], 1])
    lengths = np.maximum(lengths, slot.uses.least_ones)
    return np.asarray(np.arange(shape[-1]) < lengths, np.int64)


def _limits(dtype: np.dtype[Any]) -> Any:
    """Returns the least and the largest integer of a dtype."""
    return np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]


def _whole_bounds(uses: Uses, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Returns the closed interval of integers to draw from. Unlimited values stay small, because
    they may be an index, a class or a count whose use could not be traced.
    """
    limits = _limits(dtype)
    low = 0 if uses.low == -math.inf else math.ceil(uses.low)
    high = low + 1 if uses.high == math.inf else math.floor(uses.high)
    low, high = max(low, int(limits.min)), min(high, int(limits.max))
    return low, max(low, high)
