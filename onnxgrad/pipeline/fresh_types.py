"""Types as a fresh reading of the result would find them, so that a second run has nothing left
to do.
"""

from __future__ import annotations

import re
from collections.abc import Set

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType

# what a computed size is computed from: names that call no function
_OPERAND = re.compile(r"[^\W\d]\w*\b(?!\()")


def types_of_a_fresh_reading(program: Program) -> bool:
    """Give every result the type that reading the written file would find; whether that says more
    than was known.

    Rewriting types what it emits and nothing behind it: a constant in the place of computed sizes
    tells more about all that follows. All types are taken, not only better ones: symbols of two
    readings must not be mixed.
    """
    # a size that an input names is what it is: no reading makes a number of it
    named = {d for v in program.main.inputs for d in v.shape or () if isinstance(d, str)}
    # many values, few types
    types = {
        v.type
        for block in program.blocks()
        for b in block.bindings
        for v in b.outputs
        if v is not None
    }
    if all(_is_known(type_, named) for type_ in types):
        return False
    try:
        fresh = load(to_proto(program))
    except InputError:
        return False  # the file that was read was no better, or its weights lie elsewhere
    learned = False
    for block, other in zip(program.blocks(), fresh.blocks(), strict=True):
        found = {v.name: v for v in other.vars()}
        for b in block.bindings:
            for v in b.outputs:
                twin = None if v is None else found.get(v.name)
                if v is None or twin is None or twin.type is None:
                    continue
                learned = learned or _says_more(twin.type, v.type)
                v.type = twin.type
    return learned


def _is_known(type_: object, named: Set[str]) -> bool:
    if not isinstance(type_, TensorType) or not type_.dtype or type_.shape is None:
        return False
    return all(isinstance(d, int) or _is_named(d, named) for d in type_.shape)


def _is_named(dim: str | None, named: Set[str]) -> bool:
    """Whether it is one of the sizes, or computed from them alone: Min(128, sequence)."""
    return dim in named or (dim is not None and named >= set(_OPERAND.findall(dim)))


def _says_more(new: object, old: object) -> bool:
    """Whether a dtype, a rank or a size became known, or a size got a name."""
    if not isinstance(new, TensorType):
        return False
    if not isinstance(old, TensorType) or (new.dtype and not old.dtype):
        return True
    if new.shape is None or old.shape is None:
        return new.shape is not None
    return any(
        n is not None and o != n and not isinstance(o, int) and (o is None or isinstance(n, int))
        for n, o in zip(new.shape, old.shape)
    )
