"""Rules for numbers in nodes that follow an open size of their operand, by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.type_inference.per_binding import types_of
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements
from onnxgrad.ir.types import Array, TensorType
from onnxgrad.transform.sizes.constants import for_any_size
from onnxgrad.transform.sizes.expressions import Fixed
from onnxgrad.transform.sizes.node import Node, Shape
from onnxgrad.transform.sizes.reshape import expand, reshape

_FAR = 2**31 - 1  # a bound of a Slice that means the end


# changes the node; returns the shape of the result if type inference cannot find it
_Rule: TypeAlias = Callable[[Node], Shape | None]


def slice_(node: Node) -> Shape | None:
    """An end that equals the size of the axis follows it. Bounds in the first half of the axis
    count from its start. A later end stays fixed until the result meets an open size.
    """
    b, given = node.binding, node.shape()
    starts, ends = node.elements(1, "starts") or [], node.elements(2, "ends") or []
    axes = node.elements(3, "axes") or list(range(len(starts)))
    steps = node.elements(4) or [1] * len(starts)
    changed, late = list(ends), dict[int, int]()
    whole = _whole_ends(node, ends, axes)
    for i, axis in enumerate(axes):
        size = given[int(axis) % len(given)]
        if not node.at.is_open(size):
            continue
        number = node.number(size)
        _counts_from_the_start(starts[i], number, "start")
        if whole.get(i):
            changed[i] = _FAR
        elif (i in whole or is_late(ends[i], number)) and steps[i] == 1:
            late[int(axis) % len(given)] = node.number(ends[i]) - node.number(starts[i])
    if changed != ends:
        node.numbers.update({f"the end {e} of {b.op} is that of its axis": None
                             for e, c in zip(ends, changed, strict=True) if e != c})  # fmt: skip
        if b.version < 10:
            b.set_attribute("ends", changed)
        else:
            dtype = b.inputs[2].dtype if b.inputs[2] is not None else TensorProto.INT64
            numbers = [d for d in changed if isinstance(d, int)]
            if len(numbers) < len(changed):
                raise Refused("its ends are computed")
            node.read(2, constant(np.array(numbers), dtype))
    return _cut(node, late) if late else None


def _whole_ends(node: Node, ends: Sequence[Size], axes: Sequence[Size]) -> dict[int, bool]:
    """Returns whether each end that equals the size of an open axis follows that size."""
    given = node.shape()
    sizes = {i: given[int(axis) % len(given)] for i, axis in enumerate(axes)}
    whole = [i for i, d in sizes.items() if node.at.is_open(d) and ends[i] == node.number(d)]
    meanings = {}
    for follows in product((True, False), repeat=len(whole)):
        meaning = dict(zip(whole, follows, strict=True))
        text = [str(node.at.plain(sizes[i]) if f else ends[i]) for i, f in meaning.items()]
        meanings[f"ends {', '.join(text)}"] = meaning
    return node.choose(meanings)


def _cut(node: Node, late: Mapping[int, int]) -> Shape:
    """Returns the shape of a Slice that has the fixed sizes `late` on some axes."""
    (found,) = types_of(node.binding, KnownElements())
    shape = found.shape if isinstance(found, TensorType) else None
    sizes = [late.get(axis, size) for axis, size in enumerate(shape or ())]
    if shape is None or None in sizes:
        raise Refused("the size of its result has no formula")
    return tuple(d for d in sizes if d is not None)


def fixed_end(node: Node) -> tuple[Size, Size] | None:
    """Returns an end of a Slice that may count from the end of an open axis, and the size of that
    axis; None if there is none.
    """
    given = node.shape()
    starts, ends = node.elements(1, "starts") or [], node.elements(2, "ends") or []
    axes = node.elements(3, "axes") or range(len(starts))
    for end, axis in zip(ends, axes, strict=True):
        size = given[int(axis) % len(given)]
        if node.at.is_open(size) and is_late(end, node.number(size)):
            return end, size
    return None


def is_late(bound: Size, number: int) -> bool:
    """Whether a bound in the second half of an axis may count from its end."""
    return isinstance(bound, int) and 0 < bound < number and 2 * bound > number


def _counts_from_the_start(bound: Size, number: int, what: str) -> None:
    """Raises Refused if a positive bound may have meant a position counted from the end."""
    if isinstance(bound, int) and is_late(bound, number):
        raise Refused(
            f"its {what} {bound} of {number} may count from the end (write {bound - number}) or not"
        )


def gather(node: Node) -> Shape | None:
    """Indices of all positions of an axis follow it. Other indices must be in the first half of the
    axis, and count from its start.
    """
    given, indices = node.shape(), node.binding.operand(1)
    size = given[int(node.binding.attr("axis", 0)) % max(len(given), 1)]
    if indices is None or indices.const is None or not node.at.is_open(size):
        return None
    array, number = indices.const, node.number(size)
    for axis, count in enumerate(array.shape):
        if count == number and not np.take(array, 0, axis).any():
            plain = node.at.plain(size)
            meanings = {f"{plain} indices": True, f"{number} indices": False}
            asked = node.extensions.asked(indices)
            if not asked and not node.choose(meanings, alone=True):
                return None
            if plain is not None:
                made, how = for_any_size(indices, {axis: plain}, node.run_time, node.extensions)
                node.numbers[f"constant '{indices.name}' {indices.type} {how}"] = None
                node.read(1, made)
            return None
    _index(node, array, size)
    return None


def _index(node: Node, array: Array, size: Size) -> None:
    """Raises Refused if an index may have meant a position counted from the end. The size must have
    room for all indices.
    """
    number = node.number(size)
    if number == 1 and array.size and not node.choose({"index 0": True, "index -1": False}):
        raise Refused("its index 0 of 1 may be the first or the last")
    for index in np.unique(array).tolist():
        _counts_from_the_start(int(index), number, "index")
        node.least.append((size, int(index) + 1 if index >= 0 else -int(index)))


def elements(node: Node) -> Shape | None:
    """Fixed indices in the first half of an open axis count from its start."""
    given, indices = node.shape(), node.binding.operand(1)
    size = given[int(node.binding.attr("axis", 0)) % max(len(given), 1)]
    if indices is not None and indices.const is not None and node.at.is_open(size):
        _index(node, indices.const, size)
    return None


def gather_nd(node: Node) -> Shape | None:
    """Constant indices into an open axis must count positions along one axis of the indices."""
    given, indices = node.shape(), node.binding.operand(1)
    if indices is None or indices.const is None:
        return None
    array, first = indices.const, int(node.binding.attr("batch_dims", 0))
    wanted: dict[int, Size] = {}
    for i in range(array.shape[-1]):
        size = node.at.plain(given[first + i])
        if size is not None and node.at.is_open(size):
            number, column = node.number(size), array[..., i]
            axes = [a for a, count in enumerate(column.shape) if count == number]
            if not axes:
                _index(node, column, size)
            if axes and (len(axes) > 1 or wanted.setdefault(axes[0], size) != size):
                raise Refused(f"its indices into an axis of size {size} are fixed")
    parts = [constant(array[..., i : i + 1], indices.dtype) for i in range(array.shape[-1])]
    if not wanted:
        return None
    node.numbers[f"constant '{indices.name}' {indices.type} counts positions"] = None
    parts = [
        for_any_size(part, wanted, node.run_time, node.extensions, indices)[0]
        for part in parts[::-1]  # positions are behind the indices of a batch
    ][::-1]
    target = node.vector([wanted.get(a, d) for a, d in enumerate((*array.shape[:-1], 1))])
    node.read(1, op.Concat(*(op.Expand(part, target) for part in parts), axis=-1))
    return None


def split(node: Node) -> Shape | None:
    """An open axis can be split into equal parts only."""
    b, given = node.binding, node.shape()
    size = given[int(b.attr("axis", 0)) % len(given)]
    if not node.at.is_open(size):
        return None
    parts = node.elements(1, "split")
    each = algebra.exactly(node.at.plain(size), len(b.outputs))
    if parts is not None and any(map(node.at.is_open, parts)):
        return None
    if each is None or (parts is not None and len({*parts}) > 1):
        raise Refused(f"it cuts {node.at.plain(size)} into parts of fixed sizes")
    if parts is not None and b.version >= 13:
        node.note(parts, [each] * len(parts))
        node.read(1, node.vector([each] * len(parts)))
    return None


def resize(node: Node) -> Shape | None:
    """A fixed target stays fixed unless it equals the operand's size or the user lists the node in
    `follow`.
    """
    b, given = node.binding, node.shape()
    if b.operand(3) is None:
        return None
    target = node.elements(3) or []
    axes = [int(a) % len(given) for a in b.attr("axes") or range(len(given))]
    wanted = list(target)
    for i, axis in enumerate(axes):
        if node.at.is_open(given[axis]) and node.number(given[axis]) == target[i]:
            wanted[i] = given[axis]
        elif node.at.is_open(given[axis]) and node.follows:
            wanted[i] = _symbol(node, given[axis], target[i])
    text = f"a target of {', '.join(str(node.at.plain(d)) for d in wanted)}"
    wanted = node.choose({text: wanted, f"a target of {', '.join(map(str, target))}": target})
    if wanted != target:
        node.note(target, wanted)
        node.read(3, node.vector(wanted))
    return None


def _symbol(node: Node, size: Size, target: Size) -> Size:
    """Returns the only open symbol whose value in the file is the target, preferably one in `size`.

    Returns the target itself if no symbol or several have that value.
    """
    own = [s for s in node.at.opened if s in algebra.symbols(node.at.plain(size))]
    for symbols in (own, list(node.at.opened)):
        found = [s for s in symbols if node.at.opened[s] == target]
        if len(found) == 1:
            return found[0]
    return target


def fixed_targets(node: Node) -> list[tuple[Size, Size]]:
    """Returns the sizes that a Resize fixes, each with the open size of its operand."""
    b = node.binding
    if b.op != "Resize" or b.domain or b.operand(3) is None:
        return []
    given = node.shape()
    axes = [int(a) % len(given) for a in b.attr("axes") or range(len(given))]
    pairs = zip(node.elements(3) or (), (given[a] for a in axes), strict=False)
    return [(t, d) for t, d in pairs if node.at.is_open(d) and not node.at.is_open(t)]


def top_k(node: Node) -> Shape | None:
    """A `k` that equals the size of an open axis may or may not follow it; another is its least."""
    b, given = node.binding, node.shape()
    size = given[int(b.attr("axis", -1)) % len(given)]
    count = (node.elements(1, "k") or [0])[0]
    if node.at.is_open(size) and count == node.number(size):
        raise Refused(
            f"its k of {count} may mean all of {node.at.plain(size)}, or {count} at any size"
        )
    if node.at.is_open(size) and isinstance(count, int):
        node.least.append((size, count))
    return None


def pad(node: Node) -> Shape | None:
    """Reflected positions must be there: the size is larger than the pads of its axis."""
    if node.binding.attr("mode", "constant") not in ("reflect", b"reflect"):
        return None
    given, pads = node.shape(), node.elements(1, "pads") or []
    axes = node.elements(3) or list(range(len(given)))
    for i, axis in enumerate(axes):
        size = given[int(axis) % len(given)]
        numbers = [p for p in (pads[i], pads[i + len(axes)]) if isinstance(p, int)]
        if node.at.is_open(size):
            node.least.append((size, max([0, *numbers]) + 1))
    return None


def windows(node: Node) -> Shape | None:
    """A window that covers a whole open axis in the file slides at other sizes, which must have
    room for one. Channels of a convolution cannot be open.
    """
    given, weight = node.shape(), node.binding.operand(1)
    of_weight = [d for d in ((weight and weight.shape) or ())[2:] if isinstance(d, int)]
    kernel: Sequence[int] = node.binding.attr("kernel_shape") or of_weight
    if node.at.is_open(given[1]) and "Conv" in node.binding.op:
        raise Fixed("its channels are fixed")
    n = len(kernel)
    pads, dilations = node.binding.attr("pads") or [0] * 2 * n, node.binding.attr("dilations")
    padded = node.binding.attr("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET", "VALID", b"VALID")
    for i, (size, width) in enumerate(zip(given[2:], kernel)):
        room = (dilations or [1] * n)[i] * (width - 1) + 1 - pads[i] - pads[n + i]
        if node.at.is_open(size) and "Transpose" not in node.binding.op and not padded:
            node.least.append((size, room))
        if node.at.is_open(size) and node.number(size) == width:
            name = node.binding.node.name or node.binding.out.name
            node.remarks[
                f"{node.binding.op} '{name}': its window covers the whole axis in the file, and "
                "slides at other sizes"
            ] = None
    return _rounded_up(node, given, kernel) if node.binding.attr("ceil_mode", 0) else None


def _rounded_up(node: Node, given: Shape, kernel: Sequence[int]) -> Shape | None:
    """Returns the shape of a pool with ceil_mode, or None if it has pads or gaps between
    windows.
    """
    b, n = node.binding, len(given) - 2
    strides, dilations = b.attr("strides") or [1] * n, b.attr("dilations") or [1] * n
    if any(b.attr("pads") or ()) or any(s > k for s, k in zip(strides, kernel, strict=True)):
        return None
    made: list[Size] = []
    for size, k, stride, dilation in zip(given[2:], kernel, strides, dilations, strict=True):
        more = algebra.add(node.at.plain(size), 2 * stride - 2 - dilation * (k - 1))
        count = algebra.divide(more, stride)
        if count is None or b.attr("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET"):
            return None
        made.append(count)
    return (*given[:2], *made)


def space_to_depth(node: Node) -> Shape | None:
    """Open sizes must be multiples of the block size."""
    block = int(node.binding.attr("blocksize"))
    for size in node.shape()[2:]:
        part = algebra.divide(node.at.plain(size), block)
        whole, plain = algebra.multiply(part, block), node.at.plain(size)
        if whole is not None and plain is not None and whole != plain:
            node.conditions.append((plain, whole))
    return None


def squeeze(node: Node) -> Shape | None:
    """An open axis cannot be removed."""
    given, axes = node.shape(), node.elements(1, "axes")
    gone = range(len(given)) if axes is None else [int(a) % len(given) for a in axes]
    for axis in gone:
        if node.at.is_open(given[axis]) and node.number(given[axis]) == 1:
            raise Fixed(f"it removes axis {axis}, whose size {node.at.plain(given[axis])} is open")
    return None


def recurrent(node: Node) -> Shape | None:
    """Constant sequence lengths are refused: they hold for the file's sizes."""
    lengths = node.binding.operand(4)
    if lengths is not None and lengths.const is not None and node.at.is_open(node.shape()[0]):
        raise Refused("its sequence_lens are fixed")
    return None


TARGETS: dict[str, _Rule] = {
    "Reshape": reshape,
    "Expand": expand,
    "Slice": slice_,
    "Gather": gather,
    **dict.fromkeys(("GatherND", "ScatterND"), gather_nd),
    **dict.fromkeys(("GatherElements", "ScatterElements"), elements),
    "Split": split,
    "Squeeze": squeeze,
    "Resize": resize,
    "TopK": top_k,
    "Pad": pad,
    "SpaceToDepth": space_to_depth,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), windows),
}
