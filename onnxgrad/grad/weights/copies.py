"""Finds weights with equal elements: an exporter splits a tied matrix if it folds the transposition
of one of its readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.grad.weights.evidence import is_uniform
from onnxgrad.grad.weights.readers import PRODUCTS, TABLE, Reader, moves, operand
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES, element_count, numpy_dtype
from onnxgrad.ir.var import Var

# fewer elements may be equal by accident
_FEW = 8


def weights_of(program: Program) -> list[Var]:
    """Returns the floating-point initializers of the main graph that are neither inputs
    nor outputs.
    """
    own = program.main.initializers.values()
    return [v for v in own if v.dtype in FLOAT_DTYPES and not v.is_input and not v.returned]


@frozen
class Copy:
    """Two weights with equal elements: `copy` is `weight`, reshaped or transposed.

    certain: rows of one are looked up and a product reads the other, or the file names one
    parameter for both (`sharing.find_merged`).
    """

    weight: Var
    copy: Var
    transposed: bool
    certain: bool


def find_copies(weights: Sequence[Var]) -> list[Copy]:
    """Returns pairs of weights with equal elements, up to a transposition and a reshape, except
    constants of one number, which many parameters are at the start. Reads the elements if the first
    and the last agree.
    """
    alike: dict[object, list[Var]] = {}
    for v in weights:
        size = element_count(v.shape or ())
        if v.initializer is not None and size is not None and size >= _FEW:
            alike.setdefault((v.dtype, size), []).append(v)
    found: list[Copy] = []
    for group in alike.values():
        ends: dict[bytes, list[Var]] = {}
        for v in sorted(group, key=lambda v: not _is_table(v)) if len(group) > 1 else ():
            ends.setdefault(_ends(v), []).append(v)
        for same in ends.values():
            found += _copies(same)
    return found


def _copies(weights: Sequence[Var]) -> Iterator[Copy]:
    copied: set[Var] = set()
    for a, b in combinations(weights, 2):
        if a in copied or b in copied:
            continue
        transposed = compare(a, b)
        if transposed is not None:
            copied.add(b)
            certain = _is_table(a) and not _is_table(b) and bool(product_readers(b))
            yield Copy(a, b, transposed, certain)


def _is_table(v: Var) -> bool:
    return any(operand(Reader(v, b, slot)) == TABLE for b in v.users for slot in b.places(v))


def _ends(v: Var) -> bytes:
    """Returns the first and the last element, which no transposition moves."""
    tensor, program = v.initializer, v.block.program
    if tensor is None or tensor.data_location != TensorProto.EXTERNAL:
        array = program.array(tensor).ravel()[[0, -1]] if tensor is not None else np.zeros(0)
        return bytes(array.tobytes())
    size = numpy_dtype(v.dtype).itemsize
    start = int(next((e.value for e in tensor.external_data if e.key == "offset"), "0"))
    found = b""
    for at in (start, start + ((element_count(v.shape or ()) or 1) - 1) * size):
        part = TensorProto(name=v.name, data_type=v.dtype, dims=[1])
        part.data_location = TensorProto.EXTERNAL
        part.external_data.extend(e for e in tensor.external_data if e.key == "location")
        part.external_data.add(key="offset", value=str(at))
        part.external_data.add(key="length", value=str(size))
        found += program.array(part).tobytes()
    return found


def compare(a: Var, b: Var, *, uniform: bool = False) -> bool | None:
    """Returns whether the elements of b are those of a transposed (True) or in order (False); None
    if neither, or if all elements are equal unless `uniform`. Axes of size 1 are ignored.
    """
    if a.initializer is None or b.initializer is None or a.dtype != b.dtype:
        return None
    x = np.squeeze(a.block.program.array(a.initializer))
    y = np.squeeze(b.block.program.array(b.initializer))
    if x.size != y.size or (is_uniform(x) and not uniform):
        return None
    if uniform and is_uniform(x):
        same = x.flat[0] == y.flat[0] and is_uniform(y)
        return x.shape == y.shape[::-1] != y.shape if same else None
    if np.array_equal(x.ravel(), y.ravel()):
        return False
    flipped = x.ndim == 2 and np.array_equal(x.T.ravel(), y.ravel())
    return True if flipped else None


def product_readers(v: Var) -> set[Binding]:
    """Returns the products that read a value, directly or moved."""
    found = set()
    for b in v.users:
        if b.op in PRODUCTS:
            found.add(b)
        elif moves(b, 0):
            found |= product_readers(b.out)
    return found
