"""The models of a check: those with large weights run from files that share one weights file, so
that no process holds the weights but those that run the models.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, program_of, read
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import elements
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import external_data as external
from onnxgrad.ir.storage.external_data import TooLarge
from onnxgrad.ir.storage.outline import outline
from onnxgrad.ir.storage.weights_in_file import LARGE, LARGE_FILE
from onnxgrad.ir.types import Array
from onnxgrad.verify.proof_model import Model
from onnxgrad.wording import option

_WEIGHTS = "weights.data"
# onnxruntime infers shapes from the elements of these, if they lie in the model
_MAY_BE_SIZES = {TensorProto.INT64, TensorProto.INT32}


@dataclass(frozen=True)
class Files:
    """Where the large weights of the models lie: in a file of `folder`, or, if it is None, in the
    models themselves.
    """

    folder: Path | None = None

    def load(self, model: ModelProto) -> Program:
        """Returns the Program of a model."""
        return program_of(model, self.folder)

    def proto(self, program: Program) -> ModelProto:
        """Returns the model of a Program."""
        return to_proto(program, weights=self.folder is None)

    def runnable(self, model: ModelProto) -> Model:
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

    def elements(self, tensor: TensorProto) -> Array:
        """Returns a constant of a model as an array. Raises InputError if it cannot be read."""
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor = external.internalize(tensor, self.folder)
        return elements(tensor)


IN_MEMORY = Files()


@contextlib.contextmanager
def opened(model: ModelLike) -> Iterator[tuple[ModelProto, Files]]:
    """Yields a model, and where its weights lie: in a temporary folder if they are large and the
    disk has room for them. Raises InputError if they do not fit into a protobuf.
    """
    program = read(model)
    with contextlib.ExitStack() as stack:
        try:
            found = _outside(program, stack)
            made = (to_proto(program, weights=True), IN_MEMORY) if found is None else found
        except TooLarge as error:
            raise InputError(
                "the model's weights pass 2 GB, more than the check by differences holds in "
                f"memory: {option('`onnxgrad grad --no-verify`', '`gradient`')} makes the gradient "
                "without it"
            ) from error
        del program
        yield made


def _outside(program: Program, stack: contextlib.ExitStack) -> tuple[ModelProto, Files] | None:
    """Writes the large weights of a program into a folder that `stack` removes. Returns None if
    they are small, or if the disk is full.
    """
    large = [t for t in program.proto.graph.initializer if _is_large(t)]
    if sum(raw_bytes(t) or 0 for t in large) < LARGE_FILE:
        return None
    model = outline(program)
    if sum(raw_bytes(t) or 0 for t in external.outside(model)) >= external.MAX_BYTES:
        raise TooLarge(f"the model's weights {external.TOO_LARGE}")
    moved = [t for t in model.graph.initializer if _is_large(t)]
    names = {t.name for t in moved}
    external.load_weights(model, program.folder, program.digests, but=names)
    try:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxgrad-")))
        with open(folder / _WEIGHTS, "wb") as file:
            external.move(moved, program.folder, file, program.digests)
    except OSError:
        return None
    external.name(moved, _WEIGHTS)
    return model, Files(folder)


def _is_large(tensor: TensorProto) -> bool:
    size = raw_bytes(tensor) or 0
    if size < LARGE or tensor.data_type in _MAY_BE_SIZES:
        return False
    return tensor.data_location == TensorProto.EXTERNAL or len(tensor.raw_data) == size
