"""Models with large weights as files of a temporary folder, which share one file of weights. No
process holds these weights but those that run the models.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from onnx import ModelProto, TensorProto
from onnx.helper import np_dtype_to_tensor_dtype

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, program_of, read
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import elements
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import external_data as external
from onnxgrad.ir.storage.external_data import Digests, TooLarge
from onnxgrad.ir.storage.outline import outline
from onnxgrad.ir.storage.weights_in_file import (
    LARGE,
    LARGE_FILE,
    as_it_lies,
    read_without_weights,
)
from onnxgrad.ir.types import Array
from onnxgrad.wording import option

_WEIGHTS = "weights.data"
# onnxruntime infers shapes from the elements of these, if they lie in the model
_MAY_BE_SIZES = {TensorProto.INT64, TensorProto.INT32}


class Files:
    """Where the large weights of several models lie: in a file of `folder`, or, if it is None, in
    the models themselves. The folder is created for the first model with large weights.
    """

    def __init__(self, temporary: contextlib.ExitStack | None = None) -> None:
        """`temporary` removes the folder; None: there will be no folder."""
        self.folder: Path | None = None
        self._temporary = temporary
        self._file: IO[bytes] | None = None
        self._written: external.Written = {}
        self._digests: dict[Path | None, Digests] = {}

    def load(self, model: ModelProto) -> Program:
        """Returns the Program of a model."""
        return program_of(model, self.folder)

    def proto(self, program: Program, *, inside: bool = False) -> ModelProto:
        """Returns the model of a Program with its large weights in the folder, if the disk has
        room for them. inside: also weights that are in memory. Raises InputError if the others
        pass 2 GB, and NotProved if a file has changed since it was read.
        """
        if self.folder is not None and program.folder == self.folder:
            return to_proto(program)
        model = outline(program)
        outside = external.outside(model)
        whole = sum(raw_bytes(t) or 0 for t in outside) >= external.MAX_BYTES
        large = [t for t in model.graph.initializer if _is_large(t, inside, whole)]
        if self._temporary is None or sum(raw_bytes(t) or 0 for t in large) < LARGE_FILE:
            external.load_weights(model, program.folder, program.digests)
            return model
        external.load_weights(model, program.folder, program.digests, but={t.name for t in large})
        try:
            self._move(large, program.folder, program.digests)
        except OSError:
            return to_proto(program, weights=True)
        # protobuf keeps the memory of weights that left a model as long as the model
        return ModelProto.FromString(model.SerializeToString()) if inside else model

    def _move(self, large: list[TensorProto], at: Path | None, digests: Digests) -> None:
        """Writes weights of a model in the folder `at` into the file, unless another model has done
        so.
        """
        file = self._open()
        if file is None:
            return
        known = self._digests.setdefault(at, Digests())
        for tensor in large:
            external.unchanged_since(tensor, known, digests)
        new = external.refer(large, at, self._written)
        _, places = external.move(new, at, file, digests)
        file.flush()
        external.name(new, _WEIGHTS)
        self._written |= {(at, was): (_WEIGHTS, *span) for was, span in places.items() if was}
        known.update({was: digests[was] for was in places if was})

    def _open(self) -> IO[bytes] | None:
        if self._temporary is not None and self._file is None:
            folder = tempfile.TemporaryDirectory(prefix="onnxgrad-")
            self.folder = Path(self._temporary.enter_context(folder))
            file = open(self.folder / _WEIGHTS, "wb")  # noqa: SIM115  # closed with the folder
            self._file = self._temporary.enter_context(file)
        return self._file

    def hold(self, arrays: Mapping[str, Array]) -> dict[str, TensorProto]:
        """Writes arrays into the file, without a copy in memory. Returns tensors that refer
        to them, by name; none without a file. Raises OSError if the disk has no room.
        """
        made, file = dict[str, TensorProto](), self._open()
        if file is None:
            return made
        for name, array in arrays.items():
            offset, code = external.next_place(file), np_dtype_to_tensor_dtype(array.dtype)
            file.write(as_it_lies(array))
            made[name] = TensorProto(name=name, data_type=code, dims=array.shape)
            external.set_place(made[name], _WEIGHTS, offset, array.nbytes)
        file.flush()
        return made

    def runnable(self, model: ModelProto) -> ModelProto | Path:
        """Returns a model in the form that onnxruntime and the reference load: a file, written
        beside its weights, if some lie there.
        """
        if self.folder is None or not external.outside(model):
            return model
        data = model.SerializeToString()
        path = self.folder / f"{hashlib.blake2b(data, digest_size=16).hexdigest()}.onnx"
        if not path.exists():
            path.write_bytes(data)
        return path

    def of(self, program: Program) -> ModelProto | Path:
        """Returns a Program in the form that onnxruntime and the reference load."""
        return self.runnable(self.proto(program))

    def original(self, program: Program) -> ModelProto | Path:
        """Returns the model that a Program was read from in this form: its file if there is one."""
        if program.path is not None:
            return self.beside(program.path, program.digests)
        return self.of(program_of(program.proto, program.folder, None, program.digests))

    def beside(self, path: Path, digests: Digests | None = None) -> Path:
        """Returns a model file, or a copy beside its large weights if they lie in it: a session
        holds the file, which it reads, and a copy of such weights, but maps those in another file.
        The file itself if it is small, or the disk has no room for the weights. Raises NotProved as
        `proto`.
        """
        try:
            real = path.resolve()
            if self._temporary is None or real.stat().st_size < LARGE_FILE:
                return path
            model = read_without_weights(real)
            if model is None:
                return path
            large = external.outside(model)
            if external.locations(model) != {real.name}:
                return path
            self._move(large, real.parent, Digests() if digests is None else digests)
        except OSError:
            return path
        moved = self.runnable(model)
        return moved if isinstance(moved, Path) else path

    def elements(self, tensor: TensorProto) -> Array:
        """Returns a constant of a model as an array. Raises InputError if it cannot be read."""
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor = external.internalize(tensor, self.folder)
        return elements(tensor)


IN_MEMORY = Files()


@contextlib.contextmanager
def sharing() -> Iterator[Files]:
    """Yields Files whose folder is removed at the end."""
    with contextlib.ExitStack() as temporary:
        yield Files(temporary)


@contextlib.contextmanager
def opened(model: ModelLike) -> Iterator[tuple[ModelProto, Files]]:
    """Yields a model, and where its weights lie. Raises InputError if they pass 2 GB."""
    program = read(model)
    with sharing() as files:
        try:
            if sum(raw_bytes(t) or 0 for t in external.outside(outline(program))) >= (
                external.MAX_BYTES
            ):
                raise TooLarge(f"the model's weights {external.TOO_LARGE}")
            made = files.proto(program, inside=True)
        except TooLarge as error:
            raise InputError(
                "the model's weights pass 2 GB, more than the check by differences holds in "
                f"memory: {option('`onnxgrad grad --no-verify`', '`gradient`')} makes the gradient "
                "without it"
            ) from error
        del program
        yield made, files


def _is_large(tensor: TensorProto, inside: bool, whole: bool) -> bool:
    """Whether a tensor moves. whole: every external one does, because all of them pass 2 GB."""
    outside = tensor.data_location == TensorProto.EXTERNAL
    if whole and outside:
        return True
    size = raw_bytes(tensor) or 0
    if size < LARGE or tensor.data_type in _MAY_BE_SIZES:
        return False
    return outside or (inside and len(tensor.raw_data) == size)
