"""The emitter in force: where `a * b` and `op.X(...)` go. It stands below Var, whose operators
ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnx import NodeProto

from onnxgrad.errors import InternalError

if TYPE_CHECKING:
    from onnxgrad.ir.binding import Binding
    from onnxgrad.ir.block import BindingBlock
    from onnxgrad.ir.var import Var


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


_in_force: ContextVar[Emitter] = ContextVar("onnxgrad_emitter")


class in_force(AbstractContextManager[Emitter]):
    """Emission inside goes through `emitter`. A class, because every attempt of a law opens one."""

    __slots__ = ("_emitter", "_token")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def __enter__(self) -> Emitter:
        self._token = _in_force.set(self._emitter)
        return self._emitter

    def __exit__(self, *exc: object) -> None:
        _in_force.reset(self._token)


def emitter() -> Emitter:
    """The emitter in force; InternalError outside of `emitting`."""
    try:
        return _in_force.get()
    except LookupError:
        raise InternalError("emission outside of `with emitting(block)`") from None
