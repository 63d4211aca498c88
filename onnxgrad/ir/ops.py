"""`op.X(...)` emits operator X: `op.MatMul(a, b)`, `op.Softmax(x, axis=0)`.

Editors and mypy see `ops.pyi` instead, with every operator's operands, attributes and defaults, which
scripts/make_op_stub.py makes; `help(op.Softmax)` shows the same with the schema's words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import onnx

from onnxgrad.ir.emission import operator_help
from onnxgrad.ir.emission.emit import emit


class Operators:
    """One attribute for each operator of a domain, those included that onnx does not know."""

    def __init__(self, domain: str) -> None:
        self._name = domain

    def domain(self, name: str) -> Operators:
        """Emission of another domain's operators: `op.domain("com.microsoft").Gelu(x)`."""
        return Operators(name)

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("__"):  # asked by Python itself
            raise AttributeError(op_type)
        call = _call(self._name, op_type)
        setattr(self, op_type, call)  # found without asking from now on
        return call

    def __dir__(self) -> list[str]:
        schemas = onnx.defs.get_all_schemas()
        return sorted({"domain", *(s.name for s in schemas if s.domain == self._name and not s.deprecated)})


@lru_cache(maxsize=1024)
def _call(domain: str, op_type: str) -> Callable[..., Any]:
    def call(*operands: Any, **attrs: Any) -> Any:
        return emit(op_type, operands, attrs, domain=domain)

    call.__name__ = op_type
    call.__qualname__ = f"op.{op_type}"
    schema = operator_help.newest(op_type, domain)
    if schema is not None and not operator_help.has_graphs(schema):
        call.__doc__ = operator_help.documentation(schema)
        call.__signature__ = operator_help.signature(schema)  # type: ignore[attr-defined]
    return call


op = Operators("")
