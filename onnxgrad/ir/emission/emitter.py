"""The emitter in force: where `a * b` and `op.X(...)` go. It stands below Var, whose operators
ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import InternalError

if TYPE_CHECKING:
    from onnxgrad.ir.binding import Binding
    from onnxgrad.ir.block import BindingBlock
    from onnxgrad.ir.var import Var


@dataclass
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

    def discard(self) -> None:
        """Take back what was emitted and nothing reads."""
        if self.emitted:
            self.block.remove_unused(self.emitted)
        for v in self.constants:
            if not v.use_count and v.block.initializers.get(v.name) is v:
                v.block.remove_initializer(v)


_in_force: ContextVar[Emitter] = ContextVar("onnxgrad_emitter")


@contextmanager
def in_force(emitter: Emitter) -> Iterator[Emitter]:
    """Emission inside goes through `emitter`."""
    token = _in_force.set(emitter)
    try:
        yield emitter
    finally:
        _in_force.reset(token)


def emitter() -> Emitter:
    """The emitter in force; InternalError outside of `emitting`."""
    try:
        return _in_force.get()
    except LookupError:
        raise InternalError("emission outside of `with emitting(block)`") from None
