"""The onnxruntime sessions of the child process, and its tensors of types that numpy lacks."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from onnxgrad.interpreter import return_memory
from onnxgrad.verify.running.results_in_files import to_files

CACHED_SESSIONS = 6
# each session on a device, or of a large model, holds its weights. On a device keep the two that
# are compared; on the CPU the next one loads in the time of a few runs
DEVICE_SESSIONS, LARGE_SESSIONS = 2, 1
CPU = "CPUExecutionProvider"

_IN_USE = re.compile(rb'"mem_in_use_peak" : "(\d{1,18})"')

# onnxruntime's names of the tensor types that numpy lacks -> (TensorProto.DataType, ml_dtypes name,
# bits per element)
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


def tensor_kind(type_name: str) -> str:
    """Returns 'bfloat16' for 'tensor(bfloat16)', and '' for anything but a plain tensor."""
    return type_name[7:-1] if type_name.startswith("tensor(") else ""


def preload(ort: Any) -> None:
    """Loads the libraries that device providers need. pip puts them beside the packages, not on the
    system's path. Raises onnxruntime's exceptions, and drops its output.
    """
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls(directory="")


class Sessions:
    """The onnxruntime sessions of this process by key. The least recently used is dropped first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._optimized = ("", b"")  # a model's digest, and the model as onnxruntime optimised it

    def has(self, key: str) -> bool:
        return key in self._open

    def close_all(self) -> None:
        self._open.clear()
        return_memory()

    def open(
        self, key: str, model: bytes | bytearray | str, config: dict[str, Any]
    ) -> dict[str, Any]:
        """Opens a session; `model` is the serialized bytes or a path. Returns a description of the
        session.
        """
        import onnxruntime as ort

        provider = config["provider"]
        if provider not in ort.get_available_providers():
            return {"missing": provider, "available": ort.get_available_providers()}
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = config["threads"]
        options.inter_op_num_threads = 1
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = (
            level.ORT_ENABLE_ALL if config["optimize"] else level.ORT_DISABLE_ALL
        )
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        for library in config.get("libraries", ()):
            try:
                options.register_custom_ops_library(library)
            except Exception as error:  # noqa: BLE001  # onnxruntime's own class
                return {"library": library, "why": str(error)}
        on_cpu = provider == CPU
        if not on_cpu:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if "profile" in config:
            options.enable_profiling = True
            options.profile_file_prefix = config["profile"]
        for name, value in config["options"].items():
            options.add_session_config_entry(name, value)
        providers: list[Any] = [(provider, config["provider_options"])]
        if not on_cpu:
            providers.append(CPU)
        # of a large model no memory of a run stays for the next
        options.enable_cpu_mem_arena = options.enable_mem_pattern = not config.get("lean")
        self._drop(key)  # its weights go before they are loaded again
        self._shrink(_count(config, on_cpu) - 1)
        session = self._made(model, options, providers, config.get("again", ""))
        used = session.get_providers()
        if provider not in used:
            return {"missing": provider, "available": used}
        self._open[key] = session
        self._shrink(_count(config, on_cpu))
        return {
            "inputs": [(i.name, i.type, i.shape) for i in session.get_inputs()],
            "outputs": [(o.name, o.type, o.shape) for o in session.get_outputs()],
            "providers": used,
            "placement": {} if on_cpu else _placement(session),
        }

    def _made(
        self, model: bytes | bytearray | str, options: Any, providers: list[Any], digest: str
    ) -> Any:
        """Returns a new session. `digest`: of a model that is opened again with other threads. Then
        onnxruntime stores the graph that it optimised, and optimises only once.
        """
        import onnxruntime as ort

        def opened(given: bytes | str) -> Any:
            return ort.InferenceSession(given, options, providers=providers, enable_fallback=0)

        if digest and digest == self._optimized[0]:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            return opened(self._optimized[1])
        given = model if isinstance(model, str) else bytes(model)
        if not digest or not hasattr(os, "memfd_create"):
            return opened(given)
        # a file in memory, which a killed process cannot leave behind
        with os.fdopen(os.memfd_create("optimized"), "rb") as file:
            options.optimized_model_filepath = f"/proc/self/fd/{file.fileno()}"
            session = opened(given)
            self._optimized = digest, file.read()
        return session

    def _shrink(self, count: int) -> None:
        while len(self._open) > count:
            self._drop(next(iter(self._open)))

    def _drop(self, key: str) -> None:
        if self._open.pop(key, None) is not None:
            return_memory()

    def run(
        self,
        key: str,
        feeds: dict[str, Any],
        outputs: list[str] | None,
        folder: str | None = None,
    ) -> dict[str, Any]:
        """Returns the outputs by name, large ones as files of the `folder`."""
        session = self._used(key)
        types = {o.name: o.type for o in session.get_outputs()}
        names = list(types) if outputs is None else outputs
        run, given = _call(session, names, feeds)
        found = dict(zip(names, run(names, given), strict=True))
        if given is feeds:
            found = {name: _of_width(value, types[name]) for name, value in found.items()}
        else:
            found = {name: _from_ort(value) for name, value in found.items()}
        return to_files(found, folder)

    def _used(self, key: str) -> Any:
        self._open.move_to_end(key)
        return self._open[key]

    def time(self, key: str, feeds: dict[str, Any], count: int) -> list[tuple[float, float]]:
        """Returns the (wall, CPU) seconds of each of `count` runs. CPU time is that of all threads
        of this process.
        """
        session = self._used(key)
        names = [o.name for o in session.get_outputs()]
        run, given = _call(session, names, feeds)
        found = []
        for _ in range(count):
            wall, cpu = time.perf_counter(), time.process_time()
            run(names, given)
            found.append((time.perf_counter() - wall, time.process_time() - cpu))
        return found

    def optimized(self, key: str, digest: str) -> bytes:
        """Returns the model of this digest as onnxruntime last optimised it; empty if it was not
        stored.
        """
        return self._optimized[1] if digest and digest == self._optimized[0] else b""

    def peak(self, key: str, feeds: dict[str, Any], provider: str) -> int | None:
        """Returns the most bytes of the provider's arena in one run of a session that keeps a
        profile; None if this onnxruntime does not count them. Closes the session.
        """
        self.time(key, feeds, 1)
        return _most_in_use(self._open.pop(key).end_profiling(), provider)


def _count(config: dict[str, Any], on_cpu: bool) -> int:
    """Returns how many sessions may be open now."""
    keep: int = config.get("keep", CACHED_SESSIONS)
    if not on_cpu:
        return min(keep, DEVICE_SESSIONS)
    return min(keep, LARGE_SESSIONS) if "most" in config and _resident() > config["most"] else keep


def _resident() -> int:
    """Returns the resident bytes of this process; 0 if the system has no /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _call(
    session: Any, names: Collection[str], feeds: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns the method of a session that computes the outputs `names`, and its argument: `feeds`,
    or OrtValues if a type is involved that numpy lacks.
    """
    inputs = (*session.get_inputs(), *session.get_overridable_initializers())
    kinds = {i.name: tensor_kind(i.type) for i in inputs if i.name in feeds}
    results = {tensor_kind(o.type) for o in session.get_outputs() if o.name in names}
    if EXOTIC.keys().isdisjoint({*kinds.values(), *results}):
        return session.run, feeds
    return session.run_with_ort_values, {
        name: _to_ort(value, kinds[name]) for name, value in feeds.items()
    }


def _most_in_use(path: str, provider: str) -> int | None:
    """Returns the largest count of the provider's arena in a profile. The profile has a line for
    each node that ran, and its names are not escaped.
    """
    behind, most, cut = f'"provider" : "{provider}"'.encode(), None, False
    with open(path, "rb") as lines:
        for line in lines:
            found = _IN_USE.search(line) if behind in line else None
            if found:
                most = max(most or 0, int(found[1]))
            cut = cut or b'"name" :"profile_truncated"' in line
    if cut:
        raise RuntimeError("more nodes run than onnxruntime's profile holds")
    return most


def _of_width(value: Any, kind: str) -> Any:
    """Returns maps with numbers of the declared width, because onnxruntime returns Python floats,
    which look like doubles.
    """
    if "map(" not in kind:
        return value
    if isinstance(value, list):
        return [_of_width(v, kind) for v in value]
    width = np.float64 if "tensor(double)" in kind else np.float32
    return {k: width(v) if isinstance(v, float) else v for k, v in value.items()}


def _placement(session: Any) -> dict[str, int]:
    """Returns the number of nodes on each provider; empty if onnxruntime is too old to
    record it.
    """
    counts: dict[str, int] = {}
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return counts
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return counts


def _to_ort(value: Any, kind: str) -> Any:
    """Returns a numpy array (ml_dtypes included) as an OrtValue on the CPU. Types below 8 bits are
    packed, low bits first.
    """
    import onnxruntime as ort

    if not isinstance(value, np.ndarray) or value.dtype == object:
        raise TypeError(
            "a model with bfloat16, float8 or 4-bit inputs or outputs takes only numeric tensors "
            "beside them"
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
    """Packs a uint8 array of `bits`-wide values into bytes, the first value in the lowest bits."""
    per = 8 // bits
    padded = np.zeros((-(-values.size // per), per), np.uint8)
    padded.reshape(-1)[: values.size] = values & (2**bits - 1)
    return np.asarray(
        np.bitwise_or.reduce(padded << (np.arange(per, dtype=np.uint8) * bits), axis=1), np.uint8
    )


def unpack(raw: np.ndarray[Any, Any], bits: int, count: int) -> np.ndarray[Any, Any]:
    """Reverses `pack`; ml_dtypes reads only the low bits of each byte."""
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    return np.asarray((raw[:, None] >> shifts) & (2**bits - 1), np.uint8).reshape(-1)[:count]
