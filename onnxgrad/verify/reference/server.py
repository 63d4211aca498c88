"""Models compiled for the float64 reference in the child process, by key, as
`running.child_sessions.Sessions` keeps those of onnxruntime. The child imports this module, and
with it onnx, when it first needs it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError

from onnxgrad.errors import InputError
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.storage.external_data import load_weights
from onnxgrad.ir.storage.stored_arrays import is_storable
from onnxgrad.ir.storage.weights_in_file import LARGE, LARGE_FILE, read_without_weights
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.reference.kernels import CONTRACTIONS, DEPLOYED, ROUNDED
from onnxgrad.verify.reference.moved_constants import Roundings
from onnxgrad.verify.reference.user_operators import OWN
from onnxgrad.verify.running.results_in_files import to_files
from onnxgrad.wording import one_line

Ask: TypeAlias = Callable[[str, str, list[Any], dict[str, Any]], list[Any]]
# float64 weights are large: the original, the candidate, and what differences are taken of
_KEPT = 3


class References:
    """The compiled models of this process by key. The least recently used is dropped first, but not
    those whose runs the latest proof counts: their counts would be lost.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, Reference] = OrderedDict()
        self._counted: dict[str, object] = {}  # the count of each model's latest counted run
        self._latest: object = None

    def open(
        self, ask: Ask, key: str, model: bytes | bytearray | str, own: list[tuple[str, str]]
    ) -> None:
        """Compiles a model: its serialized bytes, or a path whose external data is read as well.
        `own`: operators that the parent computes when we `ask` it.
        """
        OWN.clear()
        for domain, op in own:
            OWN[domain, op] = _asking(ask, domain, op)
        while len(self._open) >= _KEPT:
            self._drop()
        self._open[key] = Reference(*_outlined(model))

    def _drop(self) -> None:
        free = (key for key in self._open if self._counted.get(key) != self._latest)
        key = next(free, next(iter(self._open)))
        del self._open[key]
        self._counted.pop(key, None)

    def run(
        self, key: str, feeds: Mapping[str, Any], outputs: list[str] | None, options: dict[str, Any]
    ) -> Any:
        """Returns the `outputs` of `Reference.run`; None if `key` is not open, False if the feeds
        lack inputs that the model does not remember. `everywhere`: jitter moves every result that
        rounds, not only sums. `deployed`: it moves them by the measured errors of onnxruntime.
        `folder`: large results are files there.
        """
        reference = self._open.get(key)
        if reference is None:
            return None
        self._open.move_to_end(key)
        if options.pop("short", False) and not reference.remembers(options["moved"][0]):
            return False
        if options["count"] is not None:
            self._latest = self._counted[key] = options["count"]
        folder = options.pop("folder", None)
        everywhere, deployed = options.pop("everywhere"), options.pop("deployed")
        if options["rounded"] is not None:
            options["rounded"] = Roundings(*options["rounded"])
        jittered = DEPLOYED if deployed else ROUNDED if everywhere else CONTRACTIONS
        found = reference.run(feeds, jittered=jittered, outputs=outputs, **options)
        return to_files(found, folder)

    def covered(self, key: str, count: object, then: str) -> list[tuple[Any, ...]]:
        """Returns `Reference.covered`; nothing if the model is not open."""
        reference = self._open.get(key)
        return [] if reference is None else [tuple(item) for item in reference.covered(count, then)]

    def mark(self, key: str, count: object, then: str) -> None:
        """Calls `Reference.mark`; does nothing if the model is not open."""
        if key in self._open:
            self._open[key].mark(count, then)

    def goals(self, key: str, count: object) -> list[tuple[Any, ...]]:
        """Returns `Reference.goals`; nothing if the model is not open."""
        reference = self._open.get(key)
        return [] if reference is None else [tuple(goal) for goal in reference.goals(count)]

    def reached(self, key: str, count: object) -> list[tuple[Any, ...]]:
        """Returns `Reference.reached`; nothing if the model is not open."""
        reference = self._open.get(key)
        return [] if reference is None else [tuple(reach) for reach in reference.reached(count)]


def _asking(ask: Ask, domain: str, op: str) -> Callable[..., tuple[Any, ...]]:
    def run(*operands: Any, **attributes: Any) -> tuple[Any, ...]:
        return tuple(ask(domain, op, list(operands), attributes))

    return run


def infer_types(model: bytes | bytearray) -> bytes:
    """Returns the model with the types and shapes that onnx infers, including sizes that the model
    computes.
    """
    found = onnx.shape_inference.infer_shapes(
        onnx.load_model_from_string(bytes(model)), data_prop=True
    )
    return bytes(found.SerializeToString())


def _outlined(model: bytes | bytearray | str) -> tuple[onnx.ModelProto, Path | None]:
    """Returns a model whose large weights stay in their files, and its folder; None if all weights
    are in the model. Raises InputError.
    """
    if not isinstance(model, str):
        return read(model), None
    path, found = Path(model), None
    try:
        if path.stat().st_size >= LARGE_FILE:
            found = read_without_weights(path)
        found = found or onnx.load(model, load_external_data=False)
        staying = {
            t.name
            for t in found.graph.initializer
            if is_storable(t) and (raw_bytes(t) or 0) >= LARGE
        }
        load_weights(found, path.parent, but=staying)
    except (DecodeError, InputError, OSError) as error:
        raise _unreadable(model, error) from error
    return found, path.parent


def _unreadable(model: str, error: Exception) -> InputError:
    return InputError(f"{model}: its external data cannot be read: {one_line(error, 200)}")


def read(model: bytes | bytearray | str) -> onnx.ModelProto:
    """Returns a model from its bytes, or from a path with its external data. Raises InputError."""
    if not isinstance(model, str):
        return onnx.load_model_from_string(bytes(model))
    try:
        return onnx.load(model)
    # onnx raises its checker's ValidationError, OSError, ValueError or RuntimeError
    except Exception as error:
        raise _unreadable(model, error) from error
