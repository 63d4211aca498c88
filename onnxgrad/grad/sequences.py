"""Adjoints of sequences and optionals: element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.block import Var


def add_up_sequences(contributions: Sequence[Any]) -> Any:
    """The sum of the partials of one sequence value; raises InputError where several meet."""
    if len(contributions) == 1:
        return contributions[0]
    named = ", ".join(v.name for v in contributions if isinstance(v, Var))
    raise InputError(f"a sequence with several readers has no gradient yet (adjoints {named}): read it once")
