"""Dropout with a seed: a hash of the seed, the layer and the position decides which elements are
dropped.

y = x * keep / (1 - ratio), as torch.nn.Dropout in training (Srivastava et al., 2014, "inverted").
The graph uses ordinary operators, so that any runtime has them, the gradient passes through the
same mask, and a recomputed segment drops the same elements. onnxruntime's own draws take their seed
from an attribute, so they can neither be seeded by an input nor be repeated. 32-bit integers wrap
around in these operators in the same way on every runtime.

Source: counter-based generators, Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
2011; the constants are those of Wellons, "Prospecting for Hash Functions", 2018: triple32 for the
keys, and two rounds with a key before each for the elements. The low bits of the latter need not
be well mixed, because elements are only compared with a threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, TensorType, element_count
from onnxgrad.ir.var import Var

# two hashes of one seed: together they are a key of 64 bits
_TWO = np.array([0x243F6A88, 0x85A308D3], np.uint32)
_GOLDEN = 0x9E3779B9
_KEY_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))


def keys(seed: Var, count: int) -> list[tuple[Var, Var]]:
    """Returns two keys for each of `count` users of an int64 scalar; each key is uint32 of shape
    [1].
    """
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
    """Applies a bijection of 32 bits in which each bit depends on all others."""
    for shift, factor in _KEY_ROUNDS:
        x = op.Mul(_folded(x, shift), np.uint32(factor))
    return _folded(x, 14)


def _folded(x: Var, shift: int) -> Var:
    return op.BitwiseXor(x, op.BitShift(x, np.uint32(shift), direction="RIGHT"))


def bits_like(x: Var, key: tuple[Var, Var]) -> Var:
    """Returns one uint32 for each element of `x`, in one row; its high bits are uniform and
    independent.
    """
    count = element_count(x.shape)
    end = op.Cast(op.Size(x), to=TensorProto.INT32) if count is None else np.int32(count)
    place = op.Cast(op.Range(np.int32(0), end, np.int32(1)), to=TensorProto.UINT32)
    first, second = key
    h = op.Mul(_folded(op.Add(place, first), 16), np.uint32(0x21F0AAAD))
    return op.Mul(_folded(op.Add(h, second), 15), np.uint32(0xD35A2D97))


SEED = "seed"


def in_training(b: Binding) -> bool:
    """Whether the file sets this Dropout to training mode."""
    if b.version < 7:
        return not b.attr("is_test")
    mode = b.operand(2)
    return mode is not None and mode.const is not None and bool(mode.const.any())


def decided_by_caller(b: Binding) -> bool:
    """Whether an input of the model decides if this Dropout drops."""
    mode = b.operand(2)
    return mode is not None and mode.const is None


def turn_off(b: Binding) -> None:
    """Makes a Dropout return its operand, if the file or the caller can make it drop."""
    if in_training(b) or decided_by_caller(b):
        with emitting(b.block, sources=(b,), made_by="dropout"):
            _stand_in(b, _operand(b), None)


def turn_on(block: BindingBlock, bindings: Sequence[Binding], ratio: float | None) -> Var:
    """Switches these Dropouts of a block to training mode, with one seed for all, a new input.
    Returns the seed.

    ratio: replaces the ratio of each Dropout. Raises InputError if the dtype of an operand is
    unknown.
    """
    seed = block.add_input(block.program.names.fresh(SEED), TensorType(TensorProto.INT64, ()))
    with emitting(block, share=True, made_by="dropout"):
        found = keys(seed, len(bindings))
    for b, key in zip(bindings, found, strict=True):
        if _operand(b).dtype not in FLOAT_DTYPES:
            raise InputError(f"the dtype of '{b}' is not known: it cannot drop")
        with emitting(block, sources=(b,), made_by="dropout"):
            _stand_in(b, *_dropped(_operand(b), _ratio(b) if ratio is None else ratio, key))
    return seed


def _operand(b: Binding) -> Var:
    x = b.operand(0)
    if x is None:
        raise InputError(f"'{b}' has no operand")
    return x


def _ratio(b: Binding) -> float | Var:
    """Returns the ratio of a Dropout, a number if the file fixes it. Raises InputError if it is not
    in [0, 1].
    """
    given = b.operand(1)
    if given is not None and given.const is None:
        return given
    found = 0.5 if given is None or given.const is None else float(np.float64(given.const.item()))
    if not 0.0 <= found <= 1.0:
        raise InputError(f"the ratio of '{b}' must be from 0 to 1, not {found}")
    # the decimal number that was rounded to the file's precision
    return float(str(np.float32(found)))


def _dropped(x: Var, ratio: float | Var, key: tuple[Var, Var]) -> tuple[Var, Var | None]:
    """Returns the result and the mask of kept elements (None: all)."""
    if ratio == 0.0:
        return x, None
    share = op.Cast(ratio, to=TensorProto.DOUBLE) if isinstance(ratio, Var) else ratio
    if isinstance(share, Var):
        bound: Any = op.Cast(op.Min(share * 2.0**32, 2.0**32 - 1.0), to=TensorProto.UINT32)
        wide = op.Where(op.Less(share, 1.0), 1.0 / (1.0 - share), 0.0)
        scale: Var | float = op.Cast(wide, to=x.dtype)
    else:
        bound = np.uint32(min(round(share * 2**32), 2**32 - 1))
        # everything dropped: 0 whatever the operand
        scale = 1.0 / (1.0 - share) if share < 1.0 else 0.0
    keep = op.Reshape(op.GreaterOrEqual(bits_like(x, key), bound), op.Shape(x))
    return op.Where(keep, x * scale, 0.0), keep


def _stand_in(b: Binding, y: Var, keep: Var | None) -> None:
    """Replaces the result of a Dropout, under the same name, and its mask."""
    mask = b.result(1)
    if mask is not None and mask.use_count:
        true = helper.make_tensor("value", TensorProto.BOOL, [1], np.ones(1, bool))
        kept = op.ConstantOfShape(op.Shape(y), value=true) if keep is None else keep
        b.block.replace(mask, kept)
    old, name = b.out, b.out.name
    y = op.Identity(y) if y is b.inputs[0] else y
    b.block.replace(old, y)
    if y.name != name:
        old.swap_names(y)
    b.block.remove_unused([b])
