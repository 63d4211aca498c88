"""`op.X(...)` emits operator X."""

from __future__ import annotations

from typing import Any

from onnxgrad.ir.emission.emit import emit


class _Domain:
    """`op.X(...)` emits operator X of one domain; `op.domain("com.microsoft").X(...)` of another."""

    def __init__(self, domain: str) -> None:
        self._name = domain

    def domain(self, name: str) -> _Domain:
        """Emission of another domain's operators."""
        return _Domain(name)

    def __getattr__(self, op_type: str) -> Any:
        def call(*operands: Any, **attrs: Any) -> Any:
            return emit(op_type, operands, attrs, domain=self._name)

        return call


op: Any = _Domain("")
