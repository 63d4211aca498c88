"""Lints of weights: numbers that are NaN or infinite, and data that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import elements
from onnxgrad.ir.storage.external_data import pieces
from onnxgrad.ir.var import Var
from onnxgrad.wording import first_of

NAMES = 3  # of nodes and values in a finding


@frozen
class _Numbers:
    """The numbers of a constant: how many are NaN and infinite, whether all are zero, and whether
    a finite one is neither 0 nor 1.
    """

    nan: int = 0
    infinite: int = 0
    zero: bool = True
    other: bool = False

    def __add__(self, more: _Numbers) -> _Numbers:
        return _Numbers(
            self.nan + more.nan,
            self.infinite + more.infinite,
            self.zero and more.zero,
            self.other or more.other,
        )


# float types -> their numpy type in a file; the bits of 16-bit types are compared, because numpy
# has no fast minimum of them
_TYPES: Mapping[int, str] = {
    TensorProto.FLOAT: "<f4",
    TensorProto.DOUBLE: "<f8",
    TensorProto.FLOAT16: "<u2",
    TensorProto.BFLOAT16: "<u2",
}
_INFINITY: Mapping[int, int] = {TensorProto.FLOAT16: 0x7C00, TensorProto.BFLOAT16: 0x7F80}
_ONE: Mapping[int, int] = {TensorProto.FLOAT16: 0x3C00, TensorProto.BFLOAT16: 0x3F80}
_PIECE = 1 << 20  # elements that are looked at together


def _numbers_of(data: bytes, dtype: int) -> _Numbers:
    """Returns the numbers in the raw data of a tensor; one pass over finite data."""
    found, whole = _Numbers(), np.frombuffer(data, _TYPES[dtype])
    for start in range(0, whole.size, _PIECE):
        found += _of_piece(whole[start : start + _PIECE], dtype)
    return found


def _of_piece(a: np.ndarray, dtype: int) -> _Numbers:
    if dtype in _INFINITY:
        bits, top = a & 0x7FFF, _INFINITY[dtype]
        most = int(bits.max())
        if most < top:
            return _Numbers(zero=most == 0, other=most not in (0, _ONE[dtype]))
        nan, infinite, finite = bits > top, bits == top, bits[bits < top]
        other = bool(((finite != 0) & (finite != _ONE[dtype])).any())
        return _Numbers(int(nan.sum()), int(infinite.sum()), zero=False, other=other)
    low, high = a.min(), a.max()
    if np.isfinite(low) and np.isfinite(high):
        return _Numbers(zero=bool(low == high == 0), other=bool({low, high} - {0, 1}))
    nan, infinite = np.isnan(a), np.isinf(a)
    finite = a[np.isfinite(a)]
    other = bool(((finite != 0) & (finite != 1)).any())
    return _Numbers(int(nan.sum()), int(infinite.sum()), zero=False, other=other)


@dataclass
class Model:
    """A program under lint, with the facts that several lints read, each computed once."""

    program: Program
    unreadable: dict[str, str] = field(default_factory=dict)  # the error, by constant

    @cached_property
    def bindings(self) -> list[Binding]:
        """Every binding, those of nested blocks and functions included."""
        return [b for block in self.program.blocks() for b in block.bindings]

    @cached_property
    def constants(self) -> dict[Var, _Numbers]:
        """The numbers of every floating-point constant; each weight is read once."""
        found: dict[Var, _Numbers] = {}
        known: dict[tuple[tuple[str, str], ...], _Numbers] = {}
        for v, tensor in self._tensors():
            place = tuple((e.key, e.value) for e in tensor.external_data)
            if place not in known or not place:
                try:
                    known[place] = self._read(tensor)
                except InputError as error:
                    self.unreadable[v.name] = str(error)
                    continue
            found[v] = known[place]
        return found

    def _tensors(self) -> Iterator[tuple[Var, TensorProto]]:
        for block in self.program.blocks():
            for v in block.initializers.values():
                if v.initializer is not None and v.initializer.data_type in _TYPES:
                    yield v, v.initializer
        for b in self.bindings:
            value = b.attrs.get("value") if b.op == "Constant" and b.domain == "" else None
            if isinstance(value, TensorProto) and value.data_type in _TYPES and b.outputs[0]:
                yield b.outputs[0], value

    def _read(self, tensor: TensorProto) -> _Numbers:
        dtype = tensor.data_type
        if tensor.data_location == TensorProto.EXTERNAL:
            parts: Iterable[bytes] = pieces(tensor, self.program.folder)
        elif tensor.HasField("raw_data"):
            parts = [tensor.raw_data]
        else:
            parts = [elements(tensor).tobytes()]
        found = _Numbers()
        for data in parts:
            found += _numbers_of(data, dtype)
        return found


def _sorted_by(count: Mapping[str, int]) -> list[str]:
    return sorted(count, key=lambda name: -count[name])


def nan_weights(model: Model) -> Iterator[str]:
    """Yields the weights with NaN."""
    count = {v.name: n.nan for v, n in model.constants.items() if n.nan}
    if count:
        yield f"{_numbers('NaN', count)} in {listed('weight', _sorted_by(count))}"


def infinite_weights(model: Model) -> Iterator[str]:
    """Yields the weights with infinities, except masks and bounds."""
    # a mask holds infinities beside zeros and ones, and a bound of Clip is a single one
    count = {v.name: n.infinite for v, n in model.constants.items() if n.infinite and n.other}
    if count:
        yield f"{_numbers('infinity', count)} in {listed('weight', _sorted_by(count))}"


def _numbers(what: str, count: Mapping[str, int]) -> str:
    total = sum(count.values())
    return what if total == 1 else f"{total:,} numbers are {what}"


def listed(what: str, names: Iterable[str]) -> str:
    """Returns the names with their kind: `weight 'w'`, `weights 'a', 'b' and 3 more`."""
    quoted = [f"'{name}'" for name in names]
    return f"{what}{'s' if len(quoted) > 1 else ''} {first_of(quoted, NAMES)}"


def missing_weights(model: Model) -> Iterator[str]:
    """Yields the external data that cannot be read."""
    model.constants  # noqa: B018  # reads them
    if model.unreadable:
        more = f" (and {len(model.unreadable) - 1} more)" if len(model.unreadable) > 1 else ""
        yield f"{next(iter(model.unreadable.values()))}{more}"
