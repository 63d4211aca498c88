"""Random numbers that are a function of a seed and a place: a hash of counters, in the graph.

onnxruntime's own draws take their seed from an attribute, so they can neither be told what to draw
nor repeat it: a run that was taken up again, and a segment that is computed again, would see other
masks. Here the number at place i is a hash of i under two keys, and the keys are one of the seed
and of who asks. Integers of 32 bits wrap around, which all of these operators do in the same way
everywhere.

Source: counter-based generators, Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
2011; the constants are those of Wellons, "Prospecting for Hash Functions", 2018 (triple32 for the
keys; for the elements two rounds with a key before each, whose low bits are not finished because
only comparisons with a threshold follow).
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count
from onnxgrad.ir.var import Var

# two hashes of one seed: together they are a key of 64 bits
_TWO = np.array([0x243F6A88, 0x85A308D3], np.uint32)
_GOLDEN = 0x9E3779B9
_KEY_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))


def keys(seed: Var, count: int) -> list[tuple[Var, Var]]:
    """Two keys for each of `count` users of an int64 scalar; uint32, of shape [1]."""
    low = op.Cast(seed, to=TensorProto.UINT32)
    high = op.Cast(
        op.BitShift(op.Cast(seed, to=TensorProto.UINT64), np.uint64(32), direction="RIGHT"),
        to=TensorProto.UINT32,
    )
    of_seed = _mixed(op.BitwiseXor(_mixed(op.BitwiseXor(_TWO, low)), high))
    users = (np.arange(1, count + 1) * _GOLDEN % (1 << 32)).astype(np.uint32)
    found = op.Split(
        _mixed(op.Add(np.repeat(users, 2), op.Tile(of_seed, [count]))), outputs=2 * count
    )
    return list(zip(found[::2], found[1::2], strict=True))


def _mixed(x: Var) -> Var:
    """A bijection of 32 bits in which each bit depends on all."""
    for shift, factor in _KEY_ROUNDS:
        x = op.Mul(_folded(x, shift), np.uint32(factor))
    return _folded(x, 14)


def _folded(x: Var, shift: int) -> Var:
    return op.BitwiseXor(x, op.BitShift(x, np.uint32(shift), direction="RIGHT"))


def bits_like(x: Var, key: tuple[Var, Var]) -> Var:
    """A uint32 for each element of `x`, in one row; its high bits are uniform and independent."""
    count = element_count(x.shape)
    end = op.Cast(op.Size(x), to=TensorProto.INT32) if count is None else np.int32(count)
    place = op.Cast(op.Range(np.int32(0), end, np.int32(1)), to=TensorProto.UINT32)
    first, second = key
    h = op.Mul(_folded(op.Add(place, first), 16), np.uint32(0x21F0AAAD))
    return op.Mul(_folded(op.Add(h, second), 15), np.uint32(0xD35A2D97))
