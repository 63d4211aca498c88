"""`op.X(...)` emits operator X: `op.MatMul(a, b)`, `op.Softmax(x, axis=0)`.

Editors and mypy read `ops.pyi` instead, which lists every operator's operands, attributes and
defaults. scripts/make_op_stub.py writes that file. `help(op.Softmax)` shows the same and the
schema's documentation.
"""

from __future__ import annotations

import inspect
from typing import Any

import onnx

from onnxgrad.ir.emission import operator_help
from onnxgrad.ir.emission.emit import emit


class _Operator:
    # documentation and signature are built on request, not at each first emission
    def __init__(self, domain: str, op_type: str) -> None:
        self._domain, self.__name__ = domain, op_type

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        return emit(self.__name__, operands, attrs, domain=self._domain)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        schema = operator_help.newest(self.__name__, self._domain)
        return "No schema." if schema is None else operator_help.documentation(schema)

    @property
    def __signature__(self) -> inspect.Signature:
        schema = operator_help.newest(self.__name__, self._domain)
        return (
            inspect.signature(self.__call__) if schema is None else operator_help.signature(schema)
        )

    def __repr__(self) -> str:
        return f"op.{self.__name__}{inspect.signature(self)}"


class Operators:
    """One attribute for each operator of a domain, including those that onnx does not know.

    Rewrite rules and rewriters emit with it. Operands are values (`Var`, with `shape`, `dtype`,
    `rank`), numbers or arrays; attributes are keywords. A call returns one value, or several with
    `outputs=`. Values also have Python's operators: `a * b + 1.0`, `x @ w`. `help(op.Softmax)`
    shows an operator's operands, shapes and attributes.

    >>> from onnxgrad import emitting, op
    >>> block = onnxgrad.load("models/training/mlp.onnx").main
    >>> with emitting(block):
    ...     y = op.Softmax(block.inputs[0] * 2.0, axis=-1)
    >>> y.type == block.inputs[0].type
    True
    """

    def __init__(self, domain: str) -> None:
        self._name = domain

    def domain(self, name: str) -> Operators:
        """Returns the operators of another domain: `op.domain("com.microsoft").Gelu(x)`."""
        return Operators(name)

    def __getattr__(self, op_type: str) -> _Operator:
        if op_type.startswith("__"):  # looked up by Python itself
            raise AttributeError(op_type)
        found = _Operator(self._name, op_type)
        setattr(self, op_type, found)  # the next look-up finds it here
        return found

    def __dir__(self) -> list[str]:
        schemas = onnx.defs.get_all_schemas()
        return sorted(
            {"domain", *(s.name for s in schemas if s.domain == self._name and not s.deprecated)}
        )


op = Operators("")
