"""Which versions of an operator the installed onnxruntime has kernels for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from onnxgrad.ir import attributes

# the first and the last version of a kernel, and the types that it takes by the name of a type
# parameter, as in {"T": ["tensor(float)"]}
Kernel: TypeAlias = "tuple[int, int, Mapping[str, Sequence[str]]]"
# kernels by operator, as in "Add" or "com.microsoft::Gelu"
Kernels: TypeAlias = "Mapping[str, Sequence[Kernel]]"

_OPEN = (1 << 31) - 1


def is_built_from_others(op: str, opset: int, domain: str = "") -> bool:
    """Whether onnx has a function body for an operator, which onnxruntime runs in place of a
    kernel.
    """
    schema = attributes.schema(op, opset, domain)
    # onnx's stub lacks the second
    return schema is not None and bool(
        schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined]
    )


# the dtype for which onnxruntime inserts Casts where it has no kernel, and the one that it casts to
_CAST = {"tensor(float16)": "tensor(float)"}


def has_kernel(
    known: Kernels,
    op: str,
    opset: int,
    domain: str = "",
    operands: Sequence[str] = (),
    results: Sequence[str] = (),
) -> bool:
    """Whether `known` has a kernel for the form of an operator at `opset`; false if onnx does not
    know that form. `operands`, `results`: their types, as in "tensor(float)"; those that are empty
    or missing are not compared.

    Follows onnxruntime's rule (KernelRegistry): a kernel without an end serves only the version in
    which it begins.
    """
    schema = attributes.schema(op, opset, domain)
    if schema is None or schema.deprecated:
        return False
    since = schema.since_version
    given = [
        (formals[min(i, len(formals) - 1)].type_str, name)
        for types, formals in ((operands, schema.inputs), (results, schema.outputs))
        for i, name in enumerate(types)
        if name and formals
    ]
    return any(
        (first == since or (last != _OPEN and first <= since <= last))
        and all(_takes(takes.get(parameter), name) for parameter, name in given)
        for first, last, takes in known.get(f"{domain}::{op}" if domain else op, ())
    )


def _takes(types: Sequence[str] | None, name: str) -> bool:
    return types is None or name in types or _CAST.get(name) in types
