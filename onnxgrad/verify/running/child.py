"""The process that runs models for us, in onnxruntime or in float64, and the wire format both ends speak.

It is started by path, not by module name, so that it imports neither the package nor onnx: a child is ready in about
0.2 s. The one for float64 imports onnx and the evaluator, not the rest of the package. One message is a pickle
(protocol 5) whose array buffers travel beside it, so large arrays are copied once per direction: `<u64 pickle size><u32
number of buffers><u64 size>* pickle  buffer*`. The only peer is the process that started us.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import pickle
import signal
import struct
import sys
import threading
import time
import types
from collections import OrderedDict
from typing import Any, BinaryIO

import numpy as np

CACHED_SESSIONS = 6
_INSIDE = 4096  # bytes up to which a buffer is pickled with the message: one read less
_RESERVED = 1 << 30  # bytes of address space that onnxruntime, numpy and their threads take without using them

# onnxruntime's names of the tensor types that numpy lacks -> (TensorProto.DataType, ml_dtypes name, bits per element)
EXOTIC: dict[str, tuple[int, str, int]] = {
    "bfloat16": (16, "bfloat16", 16),
    "float8e4m3fn": (17, "float8_e4m3fn", 8),
    "float8e4m3fnuz": (18, "float8_e4m3fnuz", 8),
    "float8e5m2": (19, "float8_e5m2", 8),
    "float8e5m2fnuz": (20, "float8_e5m2fnuz", 8),
    "uint4": (21, "uint4", 4),
    "int4": (22, "int4", 4),
    "float4e2m1": (23, "float4_e2m1fn", 4),
    "float8e8m0": (24, "float8_e8m0fnu", 8),
    "uint2": (25, "uint2", 2),
    "int2": (26, "int2", 2),
}


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message; large array buffers go out of band."""
    buffers: list[pickle.PickleBuffer] = []

    def inside(buffer: pickle.PickleBuffer) -> bool:
        small = buffer.raw().nbytes < _INSIDE
        if not small:
            buffers.append(buffer)
        return small

    body = pickle.dumps(message, protocol=5, buffer_callback=inside)
    views = [buffer.raw() for buffer in buffers]
    stream.write(struct.pack(f"<QI{len(views)}Q", len(body), len(views), *(view.nbytes for view in views)))
    stream.write(body)
    for view in views:
        stream.write(view)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message. Raises EOFError when the peer is gone."""
    size, count = struct.unpack("<QI", _exactly(stream, 12))
    sizes = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    body = _exactly(stream, size)
    return pickle.loads(body, buffers=[_exactly(stream, n) for n in sizes])


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


def tensor_kind(type_name: str) -> str:
    """'tensor(bfloat16)' -> 'bfloat16'; anything that is no plain tensor -> ''."""
    return type_name[7:-1] if type_name.startswith("tensor(") else ""


class Sessions:
    """onnxruntime sessions of this process by key, the least recently used dropped first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Any] = OrderedDict()

    def has(self, key: str) -> bool:
        return key in self._open

    def open(self, key: str, model: bytes | bytearray | str, config: dict[str, Any]) -> dict[str, Any]:
        """Build a session; `model` is the serialized bytes or a path. Answers what the session offers."""
        import onnxruntime as ort

        provider = config["provider"]
        if provider not in ort.get_available_providers():
            return {"missing": provider, "available": ort.get_available_providers()}
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = config["threads"]
        options.inter_op_num_threads = 1
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if config["optimize"] else level.ORT_DISABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        on_cpu = provider == "CPUExecutionProvider"
        if not on_cpu:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for name, value in config["options"].items():
            options.add_session_config_entry(name, value)
        providers: list[Any] = [(provider, config["provider_options"])]
        if not on_cpu:
            providers.append("CPUExecutionProvider")
        session = ort.InferenceSession(
            model if isinstance(model, str) else bytes(model), options, providers=providers, enable_fallback=0
        )
        used = session.get_providers()
        if provider not in used:
            return {"missing": provider, "available": used}
        self._open[key] = session
        while len(self._open) > config.get("keep", CACHED_SESSIONS):
            self._open.popitem(last=False)
        return {
            "inputs": [(i.name, i.type, i.shape) for i in session.get_inputs()],
            "outputs": [(o.name, o.type, o.shape) for o in session.get_outputs()],
            "providers": used,
            "placement": {} if on_cpu else _placement(session),
        }

    def run(self, key: str, feeds: dict[str, Any], outputs: list[str] | None) -> dict[str, Any]:
        session = self._open[key]
        self._open.move_to_end(key)
        types = {o.name: o.type for o in session.get_outputs()}
        names = list(types) if outputs is None else outputs
        wanted = {i.name: tensor_kind(i.type) for i in session.get_inputs() if i.name in feeds}
        wanted |= {i.name: tensor_kind(i.type) for i in session.get_overridable_initializers() if i.name in feeds}
        exotic = any(kind in EXOTIC for kind in wanted.values())
        if not exotic and not any(tensor_kind(types[name]) in EXOTIC for name in names):
            return dict(zip(names, session.run(names, feeds), strict=True))
        values = {name: _to_ort(value, wanted[name]) for name, value in feeds.items()}
        found = session.run_with_ort_values(names, values)
        return {name: _from_ort(value) for name, value in zip(names, found, strict=True)}

    def time(self, key: str, feeds: dict[str, Any], count: int) -> list[tuple[float, float]]:
        """(wall, CPU) seconds of each of `count` runs; CPU time is that of all threads of this process."""
        session = self._open[key]
        self._open.move_to_end(key)
        kinds = {i.name: tensor_kind(i.type) for i in session.get_inputs()}
        names = [o.name for o in session.get_outputs()]
        exotic = any(tensor_kind(o.type) in EXOTIC for o in session.get_outputs())
        if exotic or any(kinds.get(name) in EXOTIC for name in feeds):
            run, given = session.run_with_ort_values, {n: _to_ort(v, kinds.get(n, "")) for n, v in feeds.items()}
        else:
            run, given = session.run, feeds
        found = []
        for _ in range(count):
            wall, cpu = time.perf_counter(), time.process_time()
            run(names, given)
            found.append((time.perf_counter() - wall, time.process_time() - cpu))
        return found


def _placement(session: Any) -> dict[str, int]:
    """How many nodes each provider took; nothing where onnxruntime is too old to record it."""
    counts: dict[str, int] = {}
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return counts
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return counts


def _to_ort(value: Any, kind: str) -> Any:
    """A numpy array (ml_dtypes included) as an OrtValue on the CPU; types below 8 bits are packed low bits first."""
    import onnxruntime as ort

    if not isinstance(value, np.ndarray) or value.dtype == object:
        raise TypeError(
            "a model with bfloat16, float8 or 4-bit inputs or outputs takes only numeric tensors beside them"
        )
    if kind not in EXOTIC:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    code, _, bits = EXOTIC[kind]
    raw = np.ascontiguousarray(value).view(np.uint16 if bits == 16 else np.uint8).reshape(-1)
    if bits < 8:
        raw = pack(raw, bits)
    made = ort.OrtValue.ortvalue_from_shape_and_type(list(value.shape), code)
    ctypes.memmove(made.data_ptr(), raw.ctypes.data, raw.nbytes)
    return made


def _from_ort(value: Any) -> Any:
    kind = tensor_kind(value.data_type())
    if kind not in EXOTIC:
        return value.numpy()
    import ml_dtypes

    _, name, bits = EXOTIC[kind]
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), (count * bits + 7) // 8), np.uint8)
    if bits < 8:
        raw = unpack(raw, bits, count)
    return raw.view(getattr(ml_dtypes, name)).reshape(shape)


def pack(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """uint8 array of `bits`-wide values -> bytes, the first value in the lowest bits."""
    per = 8 // bits
    padded = np.zeros((-(-values.size // per), per), np.uint8)
    padded.reshape(-1)[: values.size] = values & (2**bits - 1)
    return np.asarray(np.bitwise_or.reduce(padded << (np.arange(per, dtype=np.uint8) * bits), axis=1), np.uint8)


def unpack(raw: np.ndarray[Any, Any], bits: int, count: int) -> np.ndarray[Any, Any]:
    """The inverse of `pack`; ml_dtypes reads only the low bits of each byte."""
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    return np.asarray((raw[:, None] >> shifts) & (2**bits - 1), np.uint8).reshape(-1)[:count]


class _Memory:
    """The soft limit of our address space: what a request may use, and what libraries and threads reserve."""

    def __init__(self) -> None:
        self.limit = 0

    def set(self, limit: int) -> None:
        """Bytes from now on; 0 is no limit. A hard limit that we were given stays."""
        if limit == self.limit:
            return
        try:
            import resource
        except ImportError:  # not a POSIX system: no such limit there
            return
        self.limit = limit
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = min(limit + _RESERVED, 1 << 62) if limit else resource.RLIM_INFINITY
        if hard != resource.RLIM_INFINITY:
            most = hard if most == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the parent closes the pipe. Every failure of a library becomes an answer."""
    sessions, memory = Sessions(), _Memory()
    while True:
        try:
            verb, limit, *arguments = receive(requests)
        except EOFError:
            return
        try:
            memory.set(limit)
            answer = _handle(sessions, verb, arguments)
            del arguments
        except Exception as error:  # noqa: BLE001  # libraries raise their own classes; the parent decides what it means
            answer = ("failed", type(error).__name__, " ".join(str(error).split()))
        send(answers, answer)
        del answer


def _handle(sessions: Sessions, verb: str, arguments: list[Any]) -> tuple[Any, ...]:
    if verb == "versions":
        import onnxruntime as ort

        return ("ok", {"onnxruntime": ort.__version__, "providers": ort.get_available_providers()})
    if verb == "preload":
        import onnxruntime as ort

        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls(directory="")
        return ("ok", None)
    if verb == "has":
        return ("ok", sessions.has(*arguments))
    if verb == "open":
        return ("ok", sessions.open(*arguments))
    if verb == "run":
        return ("ok", sessions.run(*arguments))
    if verb == "time":
        return ("ok", sessions.time(*arguments))
    if verb == "exact.open":
        return ("ok", _references().open(*arguments))
    if verb == "exact.run":
        return ("ok", _references().run(*arguments))
    if verb == "exact.infer":
        return ("ok", _library().infer_types(*arguments))
    raise ValueError(f"unknown request {verb!r}")


def _end_with_parent(pipe: int) -> None:
    """End this process as soon as the parent's end of `pipe` closes, however the parent died.

    The kernel's SIGIO ends us even while a library computes and holds the interpreter's lock; a thread does where
    there is no such signal, and where the parent had died before we asked for it.
    """
    if hasattr(os, "O_ASYNC"):
        import fcntl

        signal.signal(signal.SIGIO, signal.SIG_DFL)  # which is to end the process
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        os.read(pipe, 1)  # nobody writes
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@functools.cache
def _library() -> Any:
    """The module of the float64 evaluator. The packages around it are entered without running their __init__."""
    verify = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, folder in (("onnxgrad", os.path.dirname(verify)), ("onnxgrad.verify", verify)):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [folder]
            sys.modules[name] = package
    return importlib.import_module("onnxgrad.verify.reference.serving")


@functools.cache
def _references() -> Any:
    """The models that this process holds compiled."""
    return _library().References()


def main() -> None:
    """Keep the answer pipe to ourselves: whatever a library prints goes to stderr, which the parent keeps in a file."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pipe = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides what it means
    if pipe >= 0:
        _end_with_parent(pipe)
    if sys.argv[1] == "float64":
        _references()  # while the parent does something else
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
