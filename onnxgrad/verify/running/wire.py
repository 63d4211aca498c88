"""The messages between a child process and its parent.

One message is a pickle (protocol 5) whose array buffers travel beside it, so large arrays are
copied once per direction: `<u64 pickle size><u32 number of buffers><u64 size>* pickle  buffer*`.
The only peer is the process that started this one.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

_PIPE = 1 << 12  # bytes that every pipe holds
_INSIDE = 4096  # bytes of the largest buffer that is pickled with the message, which saves a read


def send(stream: BinaryIO, message: Any, *, large: Callable[[], object] = lambda: None) -> None:
    """Writes one message; large array buffers go out of band. Calls `large` first if the message is
    larger than a pipe holds, because writing may then wait for the reader.
    """
    buffers: list[pickle.PickleBuffer] = []

    def inside(buffer: pickle.PickleBuffer) -> bool:
        small = buffer.raw().nbytes < _INSIDE
        if not small:
            buffers.append(buffer)
        return small

    body = pickle.dumps(message, protocol=5, buffer_callback=inside)
    views = [buffer.raw() for buffer in buffers]
    if views or len(body) > _PIPE:
        large()
    stream.write(
        struct.pack(f"<QI{len(views)}Q", len(body), len(views), *(view.nbytes for view in views))
    )
    stream.write(body)
    for view in views:
        stream.write(view)
    stream.flush()


def receive(stream: BinaryIO, *, large: Callable[[], object] = lambda: None) -> Any:
    """Reads one message. Calls `large` after the first bytes if the message is larger than a pipe
    holds. Raises EOFError if the peer is gone.
    """
    size, count = struct.unpack("<QI", _exactly(stream, 12))
    sizes = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    if count or size > _PIPE:
        large()
    body = _exactly(stream, size)
    return _Reader(io.BytesIO(body), buffers=[_exactly(stream, n) for n in sizes]).load()


class _Reader(pickle.Unpickler):
    """Reads arrays of another numpy: version 2 renamed the module of their constructors."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(("numpy.core.", "numpy._core.")):
            core = "numpy._core" if int(np.__version__.partition(".")[0]) >= 2 else "numpy.core"
            module = f"{core}.{module.rpartition('.')[2]}"
        return super().find_class(module, name)


def _exactly(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks readinto
        if not got:
            raise EOFError
        done += got
    return data
