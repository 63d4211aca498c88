"""New constants in a model. Large ones lie in a file, so that no process holds all of them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir.load import unread
from onnxgrad.ir.preflight.tensors import check_tensor, raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import clear_data, elements, tensor_of
from onnxgrad.ir.storage import external_data as external
from onnxgrad.ir.storage.external_data import Digests
from onnxgrad.ir.storage.weights_in_file import LARGE
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.jobs.rebasing.by_blocks import joined
from onnxgrad.jobs.rebasing.outline import constants_of
from onnxgrad.wording import shape_text

_WEIGHTS = "weights.data"
# the fields of a tensor that have its elements as numbers
_TYPED = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data")


class Constants:
    """The constants of a model of `folder`, to be replaced. `file`: where large initializers go;
    None: they stay in the model. `bare`: the constants to be replaced, if they have no data.
    """

    def __init__(
        self, model: ModelProto, folder: Path | None, file: IO[bytes] | None,
        bare: Mapping[str, TensorProto] | None = None,
    ) -> None:  # fmt: skip
        self._model, self._folder, self._file = model, folder, file
        self._bare = bare is not None
        self._places = dict(constants_of(model)) if bare is None else bare
        large = _large(model) if file is not None else []
        self._waiting = {t.name: t for t in large}

    def set(self, name: str, shape: Sequence[int], blocks: Iterable[Array]) -> None:
        """Replaces the elements of a constant by those of blocks, one after the other."""
        tensor, file = self._places[name], self._leaves_for(name)
        if file is None or (
            numpy_dtype(tensor.data_type).itemsize * prod(shape) != raw_bytes(tensor)
        ):
            set_elements(tensor, joined(tuple(shape), blocks))
            return
        _check(tensor, tensor.data_type, shape)
        _write(tensor, file, (_bytes(tensor, block) for block in blocks))

    def copy(self, name: str, given: TensorProto, folder: Path | None) -> None:
        """Replaces the elements of a constant by those of a tensor in a model of `folder`."""
        tensor, outside = self._places[name], given.data_location == TensorProto.EXTERNAL
        if not (outside or given.HasField("raw_data")):
            array = elements(given)
            if name in self._waiting:
                self.set(name, array.shape, [array])
                return
            _check(tensor, given.data_type, array.shape)
            clear_data(tensor)
            for typed in _TYPED:
                getattr(tensor, typed).extend(getattr(given, typed))
            return
        if given.data_type != tensor.data_type or given.dims != tensor.dims:
            _check(tensor, given.data_type, given.dims)
        pieces = external.pieces(given, folder) if outside else [_raw(given)]
        file = self._leaves_for(name) if self._file is not None else None
        if file is None:
            if not self._bare:
                clear_data(tensor)
            tensor.raw_data = b"".join(pieces)
        else:
            _write(tensor, file, pieces)

    def _leaves_for(self, name: str) -> IO[bytes] | None:
        """The file to which a constant is to be written, if it has not been yet."""
        return self._file if self._waiting.pop(name, None) is not None else None

    def program(self) -> Program:
        """Returns the model as it is now, to be saved while the file exists."""
        if self._file is None:
            return unread(self._model, self._folder)
        with _writing(self._file):
            external.move([*self._waiting.values()], self._folder, self._file, Digests())
            self._file.flush()
        external.name(self._waiting.values(), _WEIGHTS)
        self._waiting.clear()
        for tensor in external.outside(self._model):
            if not external.stays_inside(tensor, [_WEIGHTS]):
                tensor.CopyFrom(external.internalize(tensor, self._folder))
        program = unread(self._model, Path(self._file.name).parent)
        program.digests.files = frozenset([_WEIGHTS])
        return program


def _write(tensor: TensorProto, file: IO[bytes], pieces: Iterable[Any]) -> None:
    """Writes elements to the file, without a copy, and lets the tensor refer to them."""
    offset = file.tell()
    with _writing(file):
        file.writelines(pieces)
    clear_data(tensor)
    tensor.data_location = TensorProto.EXTERNAL
    length = file.tell() - offset
    for key, value in (("location", _WEIGHTS), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _bytes(tensor: TensorProto, block: Array) -> Any:
    """The bytes of a block as they lie in a file, not copied. Raises InternalError for another
    dtype.
    """
    if block.dtype != numpy_dtype(tensor.data_type) or not block.dtype.isnative:
        raise InternalError(f"'{tensor.name}' has dtype {tensor.data_type}, not {block.dtype}")
    flat: Any = np.ascontiguousarray(block).reshape(-1)
    return flat.view(np.uint8).data


def _raw(tensor: TensorProto) -> bytes:
    """The raw data of a tensor. Raises InputError if it is damaged."""
    data: bytes = tensor.raw_data
    if len(data) != raw_bytes(tensor):
        check_tensor(tensor, "the weights")
    return data


@contextlib.contextmanager
def _writing(file: IO[bytes]) -> Iterator[None]:
    """Names the folder of temporary files in errors of the system, and closes the file then. Raises
    InputError.
    """
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):  # of what is not yet written
            file.close()
        raise InputError(
            f"{Path(file.name).parent.parent}: the new weights cannot be stored here meanwhile: "
            f"{error.strerror or error}; name a folder with more room in TMPDIR"
        ) from error


@contextlib.contextmanager
def replacing(
    model: ModelProto, folder: Path | None, *, apart: bool,
    bare: Mapping[str, TensorProto] | None = None,
) -> Iterator[Constants]:  # fmt: skip
    """Yields the constants of a model; `bare`: as of Constants. With `apart`, large ones lie in a
    temporary folder, which is removed at the end. Raises InputError if the file cannot be written.
    """
    if not apart or not _large(model):
        yield Constants(model, folder, None, bare)
        return
    with (
        tempfile.TemporaryDirectory(prefix="onnxgrad-") as made,
        open(Path(made) / _WEIGHTS, "wb") as file,
    ):
        yield Constants(model, folder, file, bare)


def _large(model: ModelProto) -> list[TensorProto]:
    return [t for t in model.graph.initializer if (raw_bytes(t) or 0) >= LARGE]


def set_elements(tensor: TensorProto, array: Array) -> None:
    """Replaces the elements of a tensor. Raises InternalError for another dtype or shape."""
    made = tensor_of(np.asarray(array, order="C"), tensor.name)
    _check(tensor, made.data_type, made.dims)
    clear_data(tensor)
    tensor.raw_data = made.raw_data


def _check(tensor: TensorProto, dtype: int, shape: Sequence[int]) -> None:
    if dtype != tensor.data_type or list(shape) != list(tensor.dims):
        raise InternalError(
            f"'{tensor.name}' has dtype {tensor.data_type} and shape {shape_text(tensor.dims)}, "
            f"not {dtype} and {shape_text(shape)}"
        )
