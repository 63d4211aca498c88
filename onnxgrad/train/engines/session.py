"""onnxruntime sessions in this process, and checks of batches."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.external_data_helper import set_external_data

from onnxgrad.errors import InputError
from onnxgrad.grad.autocast import widened
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import external_data
from onnxgrad.ir.types import Array
from onnxgrad.train.manifest import Fed
from onnxgrad.verify.running.child_sessions import preload
from onnxgrad.verify.running.libraries import register
from onnxgrad.verify.running.session import (
    PROVIDER_OPTIONS,
    RuntimeMissing,
    cannot_preload,
    how_to_get,
)
from onnxgrad.vocabulary import PROVIDERS
from onnxgrad.wording import NO_ONNXRUNTIME, one_line, option, shape_text

# from this number of weights on, freeing memory is worth the tenth of a second that it takes
_LARGE = 1 << 20
# onnxruntime's messages about a node that cannot run, and about an index
_FAILED = re.compile(
    r"while running (?P<op>\S+) node\. Name:'(?P<name>.*?)' Status Message: (?P<why>.*)", re.DOTALL
)
_INDEX = re.compile(r"\b(?:idx|index)\b\D{0,20}?(-?\d+)", re.IGNORECASE)
# the folder in which onnxruntime looks for the external data of a model passed as bytes
_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(program: Program, provider: str, threads: int | None) -> Any:
    """Returns an onnxruntime session in this process. Raises RuntimeMissing, and InputError for a
    provider that is unknown, missing, or does not start.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise RuntimeMissing(NO_ONNXRUNTIME) from None
    if provider not in PROVIDERS:
        raise InputError(f"unknown provider '{provider}': choose one of {', '.join(PROVIDERS)}")
    name, available = PROVIDERS[provider], ort.get_available_providers()
    if name not in available:
        raise InputError(how_to_get(name, available))
    if provider != "cpu":
        try:
            preload(ort)
        except Exception as error:  # the loader raises a class of its own
            raise cannot_preload(one_line(error)) from error
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    # planned memory is allocated beside that of the first run: half as much again, and no faster
    options.enable_mem_pattern = False
    # onnxruntime makes uint8 of int8, and from 1.31 on opens no DequantizeLinear of int8 before a
    # Reshape or Transpose at opset 21 or later (its issue 27845 and the fix 28144)
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    # a product with dequantised weights of 4 or 8 bits would round its other factor to int8
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    register(options)
    wanted: list[Any] = [(name, PROVIDER_OPTIONS[provider])]
    if provider != "cpu":
        wanted.append(PROVIDERS["cpu"])
    model = _with_files(widened(program) if provider == "cpu" else program, options)
    session = ort.InferenceSession(model, options, wanted, enable_fallback=0)
    if name not in session.get_providers():  # onnxruntime goes on without it
        raise InputError(how_to_get(name, session.get_providers()))
    return session


def _with_files(program: Program, options: Any) -> bytes:
    """Returns the bytes of a model whose external initializers stay in their files, which the
    runtime maps into memory. Raises InputError if one cannot be read, or if the rest is larger than
    2 GB.
    """
    model = to_proto(program)
    outside = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    for tensor in outside:
        _check_place(tensor, program.folder)
    external_data.load_weights(
        model, program.folder, program.digests, but={t.name for t in outside}
    )
    if outside and program.folder is not None:
        options.add_session_config_entry(_FOLDER, str(program.folder.resolve()))
    data: bytes = model.SerializeToString()
    return data


def _check_place(tensor: TensorProto, folder: Path | None) -> None:
    """Raises InputError as `internalize` does, but reads only one byte: onnx checks the place and
    the length of the file.
    """
    place = {e.key: e.value for e in tensor.external_data}
    offset, size = place.get("offset", "0"), raw_bytes(tensor) or 0
    if not size or not offset.isdecimal() or folder is None:
        external_data.internalize(tensor, folder)
        return
    last = TensorProto(name=tensor.name, data_type=TensorProto.UINT8, dims=[1], raw_data=b"")
    set_external_data(last, place.get("location", ""), int(offset) + size - 1, 1)
    external_data.internalize(last, folder)


@contextmanager
def refusing(feeds: Mapping[str, Array], rows: Array | None = None) -> Iterator[None]:
    """Raises InputError if a node cannot run with these arrays, such as a Gather with an index that
    its table lacks. `rows` are the rows of the data.
    """
    try:
        yield
    except Exception as error:  # onnxruntime has a class for each status
        found = _FAILED.search(str(error))
        if found is None or "alloc" in found["why"]:
            raise
        index = _INDEX.search(found["why"])
        where = "" if index is None else _place_of(int(index[1]), feeds, rows)
        raise InputError(
            f"the model cannot run this batch: {found['op']} '{found['name']}': "
            f"{one_line(found['why'])}{where}"
        ) from error


def _place_of(index: int, feeds: Mapping[str, Array], rows: Array | None) -> str:
    """Returns where an integer stands in the batch; an empty text if it is computed."""
    for name, array in feeds.items():
        if array.dtype.kind in "iu" and (array == index).any():
            place, of = _in_data(np.argwhere(array == index)[0].tolist(), array, rows)
            return f": '{name}' of the {of} is {index} at {place}"
    return ""


def not_finite(name: str, array: Array, rows: Array | None) -> str:
    """Returns where an array of the batch has its first NaN or infinity; empty if it has none."""
    wrong = np.argwhere(~np.isfinite(array)) if array.dtype.kind == "f" else np.empty((0, 1))
    if not len(wrong):
        return ""
    place, of = _in_data(wrong[0].tolist(), array, rows)
    return f"'{name}' of the {of} is {array[tuple(wrong[0])]} at {place}"


def _in_data(place: list[int], array: Array, rows: Array | None) -> tuple[list[int], str]:
    """Returns a place of a batch as a place of the data, if its rows are known."""
    if rows is None or not array.ndim or len(rows) != len(array):
        return place, "batch"
    return [int(rows[place[0]]), *place[1:]], "data"


def give_back(elements: int) -> None:
    """Returns free memory to the system if there are so many weights that this is worth the time:
    the objects of a graph refer to each other, so that only the collector frees them, and malloc
    keeps freed memory.
    """
    if elements < _LARGE:
        return
    gc.collect()
    with suppress(OSError, TypeError, AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)


def checked(
    batch: Mapping[str, Any], inputs: list[Fed], rows: Array | None = None
) -> dict[str, Array]:
    """Returns a batch as arrays that the graph accepts. Raises InputError, which names the array,
    if an array is missing, unknown or does not fit. `rows` are the rows of the data, by default
    those that the batch knows.
    """
    rows = getattr(batch, "rows", rows)
    unknown = [name for name in batch if name not in {fed.name for fed in inputs}]
    if unknown:
        raise InputError(
            f"the batch has '{unknown[0]}', which is not an input; the inputs are {_listed(inputs)}"
        )
    found: dict[str, Array] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for fed in inputs:
        if fed.name not in batch:
            how = ", with constants=trainer.anchors" if fed.of else ""
            raise InputError(f"the batch lacks '{fed.name}': the inputs are {_listed(inputs)}{how}")
        found[fed.name] = _fitting(np.asarray(batch[fed.name]), fed, sizes, rows)
    return found


def _fitting(
    array: Array, fed: Fed, sizes: dict[str, tuple[int, str]], rows: Array | None
) -> Array:
    wanted = dtype_of(fed)
    if array.dtype != wanted and array.dtype.kind in "biu" and wanted.kind in "iu":
        array = _same_integers(array, fed, wanted, rows)
    if array.dtype != wanted:
        if array.dtype.kind != wanted.kind or not np.can_cast(array.dtype, wanted, "same_kind"):
            number = array.dtype.kind in "ui" and "float" in fed.dtype
            how = option(f"--scale {fed.name}=NUMBER", f"scale={{'{fed.name}': NUMBER}}")
            raise InputError(
                f"'{fed.name}' of the batch is {array.dtype}, but the step requires {fed.dtype}"
                + (f": {how} multiplies integers, such as 1/255 for images" if number else "")
                + (": labels are indices of classes, argmax of one-hot rows" if fed.classes else "")
            )
        array = array.astype(wanted)
    _check_sizes(array, fed, sizes)
    # a cache of the past may have no places yet, but a loss needs examples and labels
    if array.size == 0 and (array.shape[0] == 0 or fed.ignored is not None):
        raise InputError(f"'{fed.name}' of the batch is empty, of shape {shape_text(array.shape)}")
    if fed.classes is not None:
        _check_labels(array, fed, fed.classes, rows)
    return np.require(array, requirements="C")


def _check_sizes(array: Array, fed: Fed, sizes: dict[str, tuple[int, str]]) -> None:
    """Raises InputError for an array of another shape, or whose symbolic sizes differ from those of
    the arrays before.
    """
    shape = fed.shape
    if shape is None:
        return
    fits = len(shape) == array.ndim and all(
        not isinstance(d, int) or d == n for d, n in zip(shape, array.shape)
    )
    if not fits:
        raise InputError(
            f"'{fed.name}' of the batch has shape {shape_text(array.shape)}, but the step requires "
            f"{shape_text(shape)}"
        )
    for d, n in zip(shape, array.shape):
        if isinstance(d, str) and sizes.setdefault(d, (n, fed.name))[0] != n:
            raise InputError(
                f"'{fed.name}' has {n} for {d}, '{sizes[d][1]}' of the same batch {sizes[d][0]}"
            )


def _same_integers(array: Any, fed: Fed, wanted: np.dtype[Any], rows: Array | None) -> Array:
    """Returns integers or booleans in another dtype. Raises InputError for a number that the dtype
    lacks.
    """
    if array.size and not np.can_cast(array.dtype, wanted):
        limits, ends = np.iinfo(wanted), (int(array.min()), int(array.max()))
        if wrong := [n for n in ends if not limits.min <= n <= limits.max]:
            place, of = _in_data(np.argwhere(array == wrong[0])[0].tolist(), array, rows)
            raise InputError(
                f"'{fed.name}' of the {of} is {wrong[0]} at {place}, which {fed.dtype} does not "
                "hold, as the step requires"
            )
    return np.asarray(array.astype(wanted))


def _check_labels(array: Any, fed: Fed, classes: int, rows: Array | None) -> None:
    """Raises InputError, which names the row in the data, for the first label that is not
    a class.
    """
    wrong = (array < 0) | (array >= classes)
    if fed.ignored is not None:
        wrong &= array != fed.ignored
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        label = array[tuple(place)]
        place, of = _in_data(place, array, rows)
        raise InputError(
            f"'{fed.name}' of the {of} has the label {label} at {place}: labels are "
            f"0 to {classes - 1}"
            + (f", or {fed.ignored}, which is ignored" if fed.ignored is not None else "")
            + (": one score per label needs the loss bce_with_logits" if classes == 1 else "")
        )


def dtype_of(fed: Fed) -> np.dtype[Any]:
    """Returns the NumPy dtype of an input."""
    return np.dtype(fed.dtype)  # bfloat16 and its like are numpy's since onnx was imported


def sizes_of(fed: Fed) -> tuple[int, ...]:
    """Returns the shape of a parameter or state, whose sizes are all known."""
    return tuple(d for d in fed.shape or () if isinstance(d, int))


def _listed(inputs: list[Fed]) -> str:
    return ", ".join(
        f"{fed.name}: {fed.dtype}{'' if fed.shape is None else shape_text(fed.shape)}"
        for fed in inputs
    )
