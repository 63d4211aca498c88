"""Reads models: turns a path, bytes, a ModelProto or another library's object into a Program, and a
Program back into an object of that type.
"""

from __future__ import annotations

import contextlib
import copyreg
import gc
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from onnx import FunctionProto, ModelProto, TensorProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir import domains
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.model_kinds import is_instance, settled
from onnxgrad.ir.preflight.invalid_models import blaming, check_axes
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.ir.preflight.other_formats import FIRST_BYTES, format_of
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.reader import Reader
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import external_data as external
from onnxgrad.ir.storage.external_data import Digests
from onnxgrad.ir.storage.weights_in_file import LARGE_FILE, read_without_weights
from onnxgrad.ir.type_inference.at_load import annotate
from onnxgrad.options import known_keywords


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the garbage collector, which would take a quarter of the time and free nothing:
    bindings and values stay.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# all that the public functions accept; the objects of other libraries have no static type here
ModelLike: TypeAlias = str | os.PathLike[str] | bytes | ModelProto | Any
# the type of the model that a function received, or ModelProto if that was a path, bytes or a
# stream; stubs have one overload for each of the two
SameType: TypeAlias = Any
M = TypeVar("M", ModelProto, Program, BindingBlock)

# protobuf holds less than this
MOST_BYTES = 1 << 31


@known_keywords
def load(model: ModelLike) -> Program:
    """Returns the Program of a model. The argument is never changed. A Program is returned as it
    is, and a main block returns its Program.

    Raises InputError if the file is missing, empty or not an ONNX model, if an operator or opset is
    unknown, or if a name is undefined or defined twice.

    >>> program = onnxgrad.load("models/training/mlp.onnx")
    >>> [str(v.type) for v in program.main.outputs]
    ['f32[]']
    """
    model = settled(model)
    if isinstance(model, Program):
        return model
    proto, path = _parsed(model)
    return program_of(proto, None if path is None else path.parent, path)


def load_in_place(model: ModelLike) -> Program:
    """Like `load`, but large weights stay in the model file, as those in external files do. The
    work must end before the file changes. `bring_inside` reads the weights.
    """
    model = settled(model)
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        proto = read_without_weights(path)
        if proto is not None:
            return program_of(proto, path.parent, path)
    return load(model)


def read(model: ModelLike, in_place: bool = False) -> Program:
    """Like `load`, but the large weights of a large file stay in it, to be copied by `save`."""
    if in_place or not isinstance(model, (str, os.PathLike)):
        return load_in_place(model) if in_place else load(model)
    path, size = Path(model), 0
    with contextlib.suppress(OSError, ValueError):
        size = path.stat().st_size
    program = load_in_place(path) if size >= LARGE_FILE else load(path)
    program.digests.files = frozenset([path.name])
    return program


def bring_inside(path: Path, *programs: Program) -> None:
    """Reads the weights that stayed in the model file `path` into programs, which share them."""
    read: dict[str, TensorProto] = {}
    for program in programs:
        for v in program.main.initializers.values():
            tensor = v.initializer
            place = {} if tensor is None else {e.key: e.value for e in tensor.external_data}
            if tensor is None or place.get("location") != path.name:
                continue
            if place["offset"] not in read:
                inside = external.internalize(tensor, program.folder)
                inside.ClearField("data_location")
                read[place["offset"]] = inside
            v.initializer = read[place["offset"]]
            program.main.touch()


def load_own(model: ModelLike, *, in_place: bool = False) -> Program:
    """Returns a Program that may be changed: a copy if `model` is a Program or its main block.
    in_place: read a file like `load_in_place`, as a large one always is. Raises as `load`.
    """
    program = read(model, in_place)
    if not isinstance(model, (Program, BindingBlock)):
        return program
    proto = to_proto(program)
    # an unchanged Program keeps its path, so that verification may run the file
    path = program.path if proto == program.proto else None
    return program_of(proto, program.folder, path, program.digests)


def proto_of(model: ModelLike) -> tuple[ModelProto, Path | None]:
    """Returns the protobuf of a model without its external data, and the folder of that data;
    operators are not checked. Raises InputError if `model` is not a model or is damaged.
    """
    model = settled(model)
    if isinstance(model, Program):
        return to_proto(model), model.folder
    proto, path = _parsed(model)
    check_model(proto, "model" if path is None else str(path))
    return proto, None if path is None else path.parent


def _parsed(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, Path | None]:
    """Returns the model, and its path if it is a file."""
    if isinstance(model, ModelProto):
        return model, None
    if isinstance(model, bytes):
        return parse(model, "the given bytes"), None
    path = Path(model)
    return read_proto(path), path


def proto_in_place(path: Path) -> ModelProto:
    """Like `read_proto`, but the large weights of a large file stay in it, to be copied by `save`.
    Raises InputError.
    """
    with contextlib.suppress(OSError, ValueError):
        if path.stat().st_size >= LARGE_FILE:
            found = read_without_weights(path)
            if found is not None:
                return found
    return read_proto(path)


def read_proto(path: Path) -> ModelProto:
    """Parses a model file without its external data. Raises InputError."""
    try:
        found = path.stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise InputError(
                f"{path}: is a device or a pipe, which cannot be read twice: pipe it "
                "into stdin and give -"
            )
        if found.st_size >= MOST_BYTES:
            with open(path, "rb") as file:
                _check_format(file.read(FIRST_BYTES), str(path))
        _check_size(found.st_size, str(path))
        data = path.read_bytes()
    except (OSError, ValueError) as e:  # a name with a zero byte is a ValueError
        raise InputError(f"{path}: {getattr(e, 'strerror', None) or e}") from e
    return parse(data, str(path))


def _check_size(size: int, where: str) -> None:
    if size >= MOST_BYTES:
        raise InputError(
            f"{where}: over 2 GB in one file, which protobuf cannot hold: store its weights as "
            "external data"
        )


def parse(data: bytes, where: str) -> ModelProto:
    """Parses a model from bytes, called `where` in errors. Raises InputError."""
    if not data:
        raise InputError(f"{where}: empty, not an ONNX model")
    _check_size(len(data), where)
    try:
        model = ModelProto()
        model.ParseFromString(data)
    except DecodeError as e:
        _check_format(data, where)
        raise InputError(f"{where}: not an ONNX model, or a truncated one (protobuf: {e})") from e
    if not model.HasField("graph"):  # a pickle, for example, may look like a message
        _check_format(data, where)
    return model


def _check_format(data: bytes, where: str) -> None:
    """Raises InputError if the data begins like a file of another format."""
    found = format_of(data[:FIRST_BYTES])
    if found:
        raise InputError(f"{where}: is {found}")


def program_of(
    proto: ModelProto,
    folder: Path | None,
    path: Path | None = None,
    digests: Digests | None = None,
) -> Program:
    """Returns the Program of a protobuf whose external data lies in `folder`. `path` is the model's
    file if the protobuf is unchanged; `digests` come from the Program that this one continues.
    Raises as `load`.
    """
    where = str(path) if path is not None else "model"
    check_model(proto, where)
    with collector_paused(), blaming(proto):
        program = _built(proto, folder, path, where)
    if digests is not None:
        program.digests = digests
    return program


def _pickled(program: Program) -> tuple[Any, ...]:
    """Pickles a Program as its protobuf: its objects recurse as deeply as the model is long."""
    proto = to_proto(program)
    path = program.path if proto == program.proto else None
    return program_of, (proto, program.folder, path)


copyreg.pickle(Program, _pickled)


def _built(proto: ModelProto, folder: Path | None, path: Path | None, where: str) -> Program:
    program = Program(proto, folder, path)
    reader = Reader(where, {(f.domain, f.name) for f in proto.functions})
    reader.graph(program.main, proto.graph, {})
    for f in proto.functions:
        program.functions[f.domain, f.name, f.overload] = reader.function(program, f)
    _pin(program)
    # protobuf returns bytes for a string that is not UTF-8
    damaged = next((name for name in program.names if not isinstance(name, str)), None)
    if damaged is not None:
        raise InputError(f"{where}: the name {damaged!r} is not UTF-8 text")
    for block in reader.unordered:
        try:
            block.schedule()
        except InternalError as e:
            raise InputError(f"{where}: graph '{block.name}': {e}") from e
    annotate(program)
    check_axes(program, where)
    return program


def unread(proto: ModelProto, folder: Path | None) -> Program:
    """Returns a Program of a valid model that can only be saved: its blocks are empty."""
    program = Program(proto, folder)
    for f in proto.functions:
        key = (f.domain, f.name, f.overload)
        program.functions[key] = BindingBlock(program, f, domains.versions(f.opset_import))
    return program


def function_block(program: Program, proto: FunctionProto) -> BindingBlock:
    """Returns the block of a function body that is not part of the model, such as a schema's. Copy
    bindings from the block; it cannot be saved.
    """
    local = {(f.domain, f.name) for f in program.proto.functions}
    return Reader(f"the body of {proto.name}", local).function(program, proto)


def _pin(program: Program) -> None:
    """Pins values that training_info or quantization annotations name: they keep their names."""
    names: set[str] = set()
    for info in program.proto.training_info:
        for graph in (info.initialization, info.algorithm):
            program.names.update(name for n in graph.node for name in (n.name, *n.output))
            names.update(name for n in graph.node for name in n.input)
            names.update(value.name for value in graph.output)
        for entry in (*info.initialization_binding, *info.update_binding):
            names.update((entry.key, entry.value))
    for note in program.proto.graph.quantization_annotation:
        names.add(note.tensor_name)
        names.update(p.value for p in note.quant_parameter_tensor_names)
    if names:
        program.main.pinned += [var for var in program.main.vars() if var.name in names]
        for var in program.main.pinned:
            var.returned += 1


def check_room(program: Program, model: Any) -> None:
    """Raises InputError if `to_kind_of` would need a ModelProto of over 2 GB. Call it before the
    long work.
    """
    if isinstance(model, (Program, BindingBlock, ModelProto)) or is_instance(
        model, "onnx_ir", "Model"
    ):
        return
    total = sum(raw_bytes(t) or 0 for t in external.outside(program.proto))
    if total >= external.MAX_BYTES:
        raise InputError(f"the model's weights ({total / 1e9:.1f} GB) {external.TOO_LARGE}")


def changed(model: Any, change: Callable[[Program], Program]) -> Any:
    """Returns the model after `change`, in the type of `model`, which is not changed."""
    program = load_own(model)
    check_room(program, model)
    return to_kind_of(change(program), model)


def to_kind_of(program: Program, model: Any) -> Any:
    """Returns the program in the type of `model`. Paths, bytes and streams return a ModelProto with
    its weights.
    """
    if isinstance(model, Program):
        return program
    if isinstance(model, BindingBlock):
        return program.main
    if is_instance(model, "onnx_graphsurgeon", "Graph"):
        return to_graphsurgeon(program)
    if is_instance(model, "onnx_ir", "Model"):
        import onnx_ir

        return onnx_ir.from_proto(to_proto(program))
    return to_proto(program, weights=not isinstance(model, ModelProto))


@known_keywords
def to_graphsurgeon(model: ModelLike) -> Any:
    """Returns a model as an onnx_graphsurgeon.Graph. Node metadata and some other fields are lost,
    because the Graph cannot hold them.
    """
    import onnx_graphsurgeon as gs

    return gs.import_onnx(to_proto(load(model), weights=True))
