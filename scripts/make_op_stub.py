"""Writes onnxgrad/ir/ops.pyi, which describes `op` for editors and mypy: every operator's operands,
attributes and defaults.

    python scripts/make_op_stub.py

Run it again when OPSET, the newest opset that the rules support, changes.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import onnx

from onnxgrad.ir.emission.operator_help import has_graphs, newest, signature

OPSET = 28
STUB = Path(__file__).resolve().parents[1] / "onnxgrad" / "ir" / "ops.pyi"

HEAD = f'''"""Made by scripts/make_op_stub.py from opset {OPSET}'s schemas: to be changed there."""

# fmt: off
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from onnx import SparseTensorProto, TensorProto, TypeProto

from onnxgrad.ir.attributes import RefAttr
from onnxgrad.ir.var import Var

# a value, a literal (a number, a vector of numbers, an array), or None where one is left out
Operand: TypeAlias = Var | npt.ArrayLike | None
Int: TypeAlias = int | np.integer[Any] | RefAttr
Float: TypeAlias = float | np.floating[Any] | RefAttr
String: TypeAlias = str | bytes | RefAttr
Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]] | RefAttr
Floats: TypeAlias = Sequence[float] | npt.NDArray[np.floating[Any]] | RefAttr
Strings: TypeAlias = Sequence[str] | Sequence[bytes] | RefAttr
# how many results, or which: then they come as a tuple, without it the first comes alone
Outputs: TypeAlias = int | Sequence[bool]

class Operators:
    def __init__(self, domain: str) -> None: ...
    def domain(self, name: str) -> Any: ...
'''

ALIASES: dict[Any, str] = {
    int: "Int", float: "Float", str: "String", list[int]: "Ints", list[float]: "Floats",
    list[str]: "Strings",
    onnx.TensorProto: "TensorProto", onnx.SparseTensorProto: "SparseTensorProto",
    onnx.TypeProto: "TypeProto",
}  # fmt: skip


def stub() -> str:
    names = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})
    found = [newest(name, "", OPSET) for name in names]
    methods = [method(s) for s in found if s is not None and not has_graphs(s)]
    return HEAD + "".join(methods) + "\nop: Operators\n"


def method(schema: onnx.defs.OpSchema) -> str:
    """Returns the lines of one operator: two overloads if it can return a tuple."""
    shown = parameters(signature(schema))
    if schema.max_output == 1:
        return line(f"def {schema.name}({shown}) -> Var: ...")
    one = shown.replace("outputs: Outputs", "outputs: None = None")
    forms = (f"({one}) -> Var: ...", f"({shown}) -> tuple[Var, ...]: ...")
    return "".join(line("@overload") + line(f"def {schema.name}{form}") for form in forms)


def line(text: str) -> str:
    """Wraps a long line between parameters."""
    whole = re.sub("(?<!,) ", "\0", text)  # textwrap breaks at each space that it sees
    wrapped = textwrap.wrap(
        whole,
        100,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join([*wrapped, ""]).replace("\0", " ")


def parameters(found: inspect.Signature) -> str:
    shown, named = ["self"], False
    operands = [p for p in found.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    for p in operands:
        if p.kind is p.VAR_POSITIONAL:
            shown += ["/"] if len(shown) > 1 else []
            shown.append(f"*{p.name}: Operand")
            named = True
        else:
            shown.append(f"{p.name}: Operand" + ("" if p.default is p.empty else " = None"))
    if not named and len(shown) > 1:
        shown.append("/")
    attributes = [p for p in found.parameters.values() if p.kind is p.KEYWORD_ONLY]
    if attributes and not named:
        shown.append("*")
    for p in attributes:
        if p.name == "outputs":
            shown.append("outputs: Outputs")
            continue
        alias = ALIASES[p.annotation]
        shown.append(
            f"{p.name}: {alias}" + ("" if p.default is p.empty else f" | None = {p.default!r}")
        )
    return ", ".join(shown)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
