"""The emitter in force: where `a * b` and `op.X(...)` append their bindings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

from onnx import NodeProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.var import EMITTER, Var, current_emitter


@dataclass(slots=True)
class Emitter:
    """Where bindings go, and how. `known` holds what was emitted already when sharing is on
    (hash-consing).
    """

    block: BindingBlock
    emit: Callable[..., Any]  # `emission.emit.emit`, which reads modules above this one
    known: dict[Any, Any] | None = None
    sources: Sequence[Binding] = ()
    made_by: str = ""
    emitted: list[Binding] = field(default_factory=list)
    constants: list[Var] = field(default_factory=list)
    # sources, and a node of the metadata that they amount to: an attempt emits many bindings from
    # the same
    origin: tuple[Sequence[Binding], NodeProto] | None = None

    def discard(self) -> None:
        """Take back what was emitted and nothing reads."""
        if self.emitted:
            self.block.remove_unused(self.emitted)
        for v in self.constants:
            if not v.use_count and v.block.initializers.get(v.name) is v:
                v.block.remove_initializer(v)


class in_force(AbstractContextManager[Emitter]):
    """Emission inside goes through `emitter`. A class, because every attempt of a law opens one."""

    __slots__ = ("_emitter", "_token")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def __enter__(self) -> Emitter:
        self._token = EMITTER.set(self._emitter)
        return self._emitter

    def __exit__(self, *exc: object) -> None:
        EMITTER.reset(self._token)


def emitter() -> Emitter:
    """The emitter in force; raises InternalError outside of `emitting`."""
    return cast("Emitter", current_emitter())
