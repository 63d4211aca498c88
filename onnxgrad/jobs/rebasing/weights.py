"""New values for the initializers of a recorded model: from another export of the architecture, or
from arrays by name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.load import program_of, proto_in_place, proto_of
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.protobufs import copy_of, elements
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.external_data import internalize
from onnxgrad.ir.storage.numpy_files import mapped_at, read_arrays
from onnxgrad.ir.storage.safetensors_file import opened
from onnxgrad.ir.storage.stored_arrays import StoredArray, floats_at, is_storable, stored
from onnxgrad.ir.storage.weights_in_file import LARGE
from onnxgrad.ir.types import Array, dtype_name, numpy_dtype
from onnxgrad.jobs.rebasing.architecture import are_equal, listed, same_places
from onnxgrad.jobs.rebasing.by_blocks import Range, Source
from onnxgrad.jobs.rebasing.outline import initializers
from onnxgrad.jobs.rebasing.record import Record
from onnxgrad.transform.inference_mode import described, in_training_mode
from onnxgrad.vocabulary import ADAPTERS
from onnxgrad.wording import counted, option, perhaps, shape_text


@frozen
class NewWeights:
    """The values by the name of the original's initializer, read on access, notes, and the model
    that holds them, if it is one, with its folder. `tensors`: those that it has as tensors,
    `sources`: large ones that stay in files.
    """

    readers: Mapping[str, Callable[[], Array]]
    notes: list[str] = field(default_factory=list)
    export: ModelProto | None = field(default=None, repr=False)
    folder: Path | None = None
    tensors: Mapping[str, TensorProto] = field(default_factory=dict, repr=False)
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False)

    def __call__(self, name: str) -> Array:
        return self.readers[name]()


@contextlib.contextmanager
def new_weights(
    record: Record, given: Any, names: Mapping[str, str], where: str
) -> Iterator[NewWeights]:
    """Yields the weights in a file (.onnx, .safetensors, .npz), a model, or a mapping of arrays by
    name. `names`: their names by those of the original. Raises InputError for weights that are
    missing or have another shape or dtype, for another architecture, and for other sizes or
    indices.
    """
    for name in names:
        if name not in record.initializers:
            flag = option(f"--map {name}={names[name]}", f"map={{{name!r}: {names[name]!r}}}")
            hint = perhaps(name, record.initializers)
            raise InputError(f"{flag}: the original has no initializer of this name{hint}")
    if isinstance(given, Mapping):
        yield _of_arrays(record, _plain(given, where), names, where)
        return
    path = Path(given) if isinstance(given, (str, os.PathLike)) else None
    if path is not None and path.suffix == ".safetensors":
        with opened(path) as stored:
            yield _of_arrays(record, stored, names, where, stored.place)
    elif path is not None and path.suffix in (".npz", ".npy"):
        arrays = read_arrays(path, mapped=True)
        if not isinstance(arrays, dict):
            raise InputError(f"{where}: holds one array without a name: save an .npz file")
        yield _of_arrays(record, arrays, names, where, lambda name: mapped_at(arrays[name]))
    else:
        yield _of_model(record, *_read(given), names, where)


def _read(model: Any) -> tuple[ModelProto, Path | None]:
    """A model, which is not checked yet, and the folder of the weights outside of it."""
    if isinstance(model, (str, os.PathLike)):
        return proto_in_place(Path(model)), Path(model).parent
    return (model, None) if isinstance(model, ModelProto) else proto_of(model)


def _has_adapters(model: ModelProto) -> bool:
    return any(entry.key == ADAPTERS for entry in model.metadata_props)


def _of_model(
    record: Record, new: ModelProto, folder: Path | None, names: Mapping[str, str], where: str
) -> NewWeights:
    notes = []
    if _has_adapters(new) and not _has_adapters(record.original):
        from onnxgrad.train.adapters.merge import merge  # imports all of training

        merged = merge(program_of(new, folder))
        new, folder = to_proto(merged), merged.folder
        notes.append(f"{where}: its adapters were merged into its weights")
    equal = are_equal(record.original, new)
    if not equal:
        check_model(new, where)
        new, converted = _at_opset(new, folder, record.original)
        notes += [f"{where}: {converted}"] if converted else []
    # the length of the data of equal ones is checked when it is read
    places: Mapping[str, Sequence[str]] = {} if equal else _places(record, new, where)
    tensors = dict(initializers(new, record.inside if equal else None))
    used = dict[str, TensorProto]()
    readers: dict[str, Callable[[], Array]] = {}
    missing = []

    for name, tensor in record.initializers.items():
        found = [names[name]] if name in names else places.get(name, [name])
        if any(n not in tensors for n in found):
            missing += [name] if equal or name in places or name in names else []
            continue
        first = tensors[found[0]]
        for other in found[1:]:
            same = _fit(first, tensors[other])
            if not same or _of(first, folder).tobytes() != _of(tensors[other], folder).tobytes():
                raise InputError(
                    f"{where}: '{name}' of the original is two weights, '{found[0]}' and "
                    f"'{other}', with different values: they were one when the model was exported; "
                    "optimise the new model instead"
                )
        if not _fit(first, tensor):
            raise InputError(
                f"{where}: '{found[0]}' is {_shape(first)}, '{name}' of the original is "
                f"{_shape(tensor)}: another architecture; optimise it instead"
            )
        readers[name], used[name] = partial(_of, first, folder), first
    made = _complete(record, readers, missing, where)
    sources = {
        name: Source(tuple(t.dims), _stored(t, folder))
        for name, t in used.items()
        if folder is not None and is_storable(t) and (raw_bytes(t) or 0) >= LARGE
    }
    return replace(
        made, notes=notes + made.notes, export=new, folder=folder, tensors=used, sources=sources
    )


def _stored(tensor: TensorProto, folder: Path) -> Callable[[Range], Array]:
    """Reads ranges of an external tensor, whose place is checked before the first."""
    array = cache(lambda: stored(tensor, folder))
    return lambda at: array().part(*at)


def _of(tensor: TensorProto, folder: Path | None) -> Array:
    return elements(internalize(tensor, folder) if is_outside(tensor) else tensor)


def _at_opset(new: ModelProto, folder: Path | None, original: ModelProto) -> tuple[ModelProto, str]:
    """Returns an export in the opset of the original, if it has another one that can be converted,
    and a note.
    """
    own, wanted = (domains.versions(m.opset_import).get("", 0) for m in (new, original))
    if own == wanted:
        return new, ""
    from onnxgrad.passes.convert_opset import convert  # imports the passes

    program = program_of(copy_of(new), folder)
    try:
        convert(program, wanted)
    except InputError:
        return new, ""
    return to_proto(program), f"was converted from opset {own} to {wanted}"


def _places(record: Record, new: ModelProto, where: str) -> dict[str, list[str]]:
    """Returns the initializers of an export by those of the original. An export may also have the
    changes around the passes. Raises InputError for another architecture.
    """
    try:
        return same_places(record.original, new)
    except InputError as error:
        reference, found = record.reference, None
        if reference is not None:
            with contextlib.suppress(InputError):  # heads may have replaced outputs
                return same_places(record.original, new, outputs_in_order=False)
            with contextlib.suppress(InputError):
                found = same_places(reference, new)
        if reference is not None and found is not None:
            _check_added(record, reference, new, found, where)
            return {old: found[name] for name, old in record.sources.items() if name in found}
        training = in_training_mode(record.original)
        if training and not in_training_mode(new):
            raise InputError(
                f"{where}: the original has {described(training)} in training mode, the new "
                "weights belong to a model in inference: `fit --keep-training-mode` leaves it in "
                "training mode, or optimise a trained model, whose record fits those of later "
                "trainings"
            ) from None
        raise error from None


def _check_added(
    record: Record,
    reference: ModelProto,
    new: ModelProto,
    places: Mapping[str, Sequence[str]],
    where: str,
) -> None:
    """Raises InputError if a constant that changes of the original added has another value."""
    tensors = dict(initializers(new))
    for name, tensor in initializers(reference):
        for other in places.get(name, ()) if name not in record.sources else ():
            if not _equal(elements(tensor), elements(tensors[other])):
                raise InputError(
                    f"{where}: '{other}' has other values: it is no weight, but a change of the "
                    "original added it, so the model must be optimised again"
                )


def is_outside(tensor: TensorProto) -> bool:
    """Whether the data of a tensor lies in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _fit(a: TensorProto, b: TensorProto) -> bool:
    return a.data_type == b.data_type and a.dims == b.dims


def _shape(tensor: TensorProto) -> str:
    return f"{dtype_name(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"


def _of_arrays(
    record: Record, arrays: Mapping[str, Array], names: Mapping[str, str], where: str,
    place: Callable[[str], tuple[Path, int] | None] = lambda name: None,
) -> NewWeights:  # fmt: skip
    """`place`: the file of an array, and the offset there; None for one in memory."""
    readers: dict[str, Callable[[], Array]] = {}
    sources: dict[str, Source] = {}
    used, missing, notes, wider = set[str](), [], [], 0
    outlines: Mapping[str, Array] = getattr(arrays, "outlines", arrays)
    ours, theirs = _beginnings(record, arrays, names)
    if ours or theirs:
        notes.append(f"{where}: its names begin with '{theirs}' where the original has '{ours}'")
    for name, tensor in record.initializers.items():
        source, turned = names.get(name, theirs + name.removeprefix(ours)), False
        if source not in arrays and source.endswith(".T"):
            source, turned = source[:-2], True
        if source not in arrays:
            if name in names:
                raise InputError(f"{where}: has no '{source}'{perhaps(source, arrays)}")
            missing += [name] if name in record.weights else []
            continue
        used.add(source)
        wider += outlines[source].dtype != numpy_dtype(tensor.data_type)
        outline = outlines[source]
        turned = _is_turned((name, tensor), source, outline, turned, name in names, where)
        dtype = numpy_dtype(tensor.data_type)
        readers[name] = partial(_read_array, arrays, source, dtype, turned)
        at = place(source) if outline.nbytes >= LARGE else None
        stays = at and floats_at(str(at[0]), at[1], outline)
        if stays:
            sources[name] = Source(tuple(tensor.dims), partial(_read_range, stays, dtype, turned))
    found = _complete(record, readers, missing, where)
    if wider:
        notes.append(f"{where}: {counted(wider, 'array')} became wider, which is exact")
    if unused := len(arrays) - len(used):
        notes.append(f"{where}: {counted(unused, 'array')} belong to no initializer")
    return replace(found, notes=found.notes + notes, sources=sources)


def _read_array(
    arrays: Mapping[str, Array], source: str, dtype: np.dtype[Any], turned: bool
) -> Array:
    array = np.asarray(arrays[source]).astype(dtype, copy=False)
    return np.ascontiguousarray(array.T) if turned else array


def _read_range(stays: StoredArray, dtype: np.dtype[Any], turned: bool, at: Range) -> Array:
    axis, start, end = at
    array = stays.part(1 - axis if turned else axis, start, end)
    return (array.T if turned else array).astype(dtype, copy=False)


def _beginnings(
    record: Record, arrays: Mapping[str, Array], names: Mapping[str, str]
) -> tuple[str, str]:
    """Returns how all names of weights begin in the original and in arrays, one of the two with
    more modules around them, such as 'model.'; empty if they are equal, or if several fit.
    """
    wanted = [name for name in record.weights if name not in names]
    if not wanted or any(name in arrays for name in wanted):
        return "", ""
    first = wanted[0]
    found = [("", key.removesuffix(first)) for key in arrays if key.endswith(f".{first}")]
    found += [(first[: i + 1], "") for i, c in enumerate(first) if c == "."]
    fits = [
        (ours, theirs)
        for ours, theirs in found
        if all(n.startswith(ours) and theirs + n.removeprefix(ours) in arrays for n in wanted)
    ]
    return fits[0] if len(fits) == 1 else ("", "")


def _plain(arrays: Mapping[str, Any], where: str) -> dict[str, Array]:
    """Returns arrays of NumPy, also from tensors of torch on the CPU. Raises InputError."""
    found: dict[str, Array] = {}
    for name, value in arrays.items():
        if not hasattr(value, "__array__"):
            kind = type(value).__name__
            raise InputError(f"{where}: '{name}' is of type {kind}: pass an array of NumPy's")
        try:
            found[name] = np.asarray(value)
        except (TypeError, RuntimeError) as error:  # of torch: bfloat16, another device, a gradient
            raise InputError(
                f"{where}: '{name}' is no array of NumPy's: {error}; pass one, or a .safetensors "
                "file"
            ) from None
    return found


# dtypes that hold every number of another one
_WIDER = {
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
}


def _is_turned(
    wanted: tuple[str, TensorProto], source: str, outline: Array, turned: bool, mapped: bool,
    where: str,
) -> bool:  # fmt: skip
    """Whether the transpose of an array is what the tensor needs. Raises InputError unless it has
    the dtype or a narrower one, and a shape that is certain to fit.
    """
    (name, tensor), dims = wanted, tuple(wanted[1].dims)
    dtype = numpy_dtype(tensor.data_type)
    if outline.dtype != dtype and dtype.name not in _WIDER.get(outline.dtype.name, ()):
        raise InputError(
            f"{where}: '{source}' is {outline.dtype}, '{name}' of the original is "
            f"{_shape(tensor)}: cast it first"
        )
    if mapped and not turned and len(dims) == 2 and dims[0] == dims[1] and source != name:
        flag = option(f"--map {name}={source}.T", f"map={{{name!r}: '{source}.T'}}")
        raise InputError(
            f"{where}: '{source}' is square, so its orientation is unknown: {flag} transposes it; "
            f"under the name '{name}' it is taken as it is"
        )
    if not turned and outline.shape != dims and outline.shape == dims[::-1] and len(dims) == 2:
        turned = True
    if (outline.shape[::-1] if turned else outline.shape) != dims:
        raise InputError(
            f"{where}: '{source}' has the shape {shape_text(outline.shape)}, "
            f"'{name}' of the original is {_shape(tensor)}: another architecture; optimise it "
            "instead"
        )
    return turned


def _complete(
    record: Record, readers: dict[str, Callable[[], Array]], missing: list[str], where: str
) -> NewWeights:
    """Adds the constants of formulas that a file of weights lacks, and compares those that must
    stay.
    """
    if missing:
        raise InputError(
            f"{where}: no value for {counted(len(missing), 'weight')} of the original: "
            f"{listed(missing)}; {option('--map OLD=NEW', 'map')} names those with other names"
        )
    kept = [n for n in record.stored if n not in readers and n not in record.fixed]
    notes = [f"not in {where}, and kept: {listed(kept)}"] if kept else []
    for name in record.stored:
        tensor = record.initializers[name]
        if name not in readers:
            readers[name] = partial(elements, tensor)
        elif name in record.fixed and not _equal(elements(tensor), readers[name]()):
            raise InputError(
                f"{where}: '{name}' has other values: it decides sizes, indices or branches, so "
                "the model must be optimised again"
            )
    return NewWeights(readers, notes)


def _equal(a: Array, b: Array) -> bool:
    alike = a.dtype == b.dtype and a.shape == b.shape
    return alike and (np.array_equal(a, b) if a.dtype == object else a.tobytes() == b.tobytes())
