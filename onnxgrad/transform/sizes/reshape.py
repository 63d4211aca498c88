"""The targets of Reshape and Expand: every open size keeps its place in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.ir import sizes as algebra
from onnxgrad.transform.sizes.node import Node, Shape
from onnxgrad.wording import shape_text


def reshape(node: Node) -> Shape | None:
    """Returns the shape of the result: open sizes keep their place in memory."""
    given, target = node.shape(), node.elements(1, "shape")
    if target is None:
        raise Refused("its target is not known")
    in_file = [node.number(d) for d in given]
    wanted = _in_file(node, target, in_file)
    own = _own(node, target, given)
    if own is not None and any(map(node.at.is_open, target)):  # computed from the size
        return _computed(node, own, given, wanted)
    placed = _placed(node, given, wanted)
    found = node.choose(_meanings(node, wanted, placed, own))
    if found is own or (found is placed and own and all(map(node.at.same, own, placed))):
        return found
    if node.binding.version < 5:
        raise Refused("Reshape of an old opset")
    node.note(wanted, found)
    node.read(1, node.vector(_target(found)))
    return found


def _meanings(
    node: Node, wanted: Sequence[int], found: Shape, own: Shape | None
) -> dict[str, Shape]:
    """Returns the shapes that the target may mean, by their texts.

    They are `found`, the unchanged numbers if they fit every size, and open sizes moved to other
    axes that have the same number in the file.
    """
    total, count = (algebra.product(map(node.at.plain, s)) for s in (node.shape(), own or ()))
    made = [] if own is None or total != count else [own]
    for i, size in enumerate(found):
        for part in node.at.parts(size) if node.at.is_open(size) else ():
            rest = algebra.exactly(node.at.plain(size), part)
            for k in (k for k, number in enumerate(wanted) if k != i):
                if wanted[k] == wanted[i]:
                    made.append(_with(node, found, {i: found[k], k: size}))
                elif wanted[k] == node.number(part) and rest is not None:
                    made.append(_with(node, found, {i: node.at.joined([found[k], rest]), k: part}))
                elif node.number(size) == 1:  # it may be part of any other axis
                    made.append(_with(node, found, {i: 1, k: node.at.joined([size, found[k]])}))
    meanings = {_text(node, found): found}
    for shape in made:
        meanings.setdefault(_text(node, shape), shape)
    return meanings


def _with(node: Node, shape: Shape, changes: Mapping[int, Size]) -> Shape:
    moved = (changes.get(i, d) for i, d in enumerate(shape))
    return tuple(p for d in moved if (p := node.at.plain(d)) is not None)


def _text(node: Node, shape: Shape) -> str:
    return shape_text(node.at.plain(d) for d in shape)


def _target(found: Shape) -> list[Size]:
    """Returns the target with -1 for the last open size."""
    computed = [i for i, d in enumerate(found) if isinstance(d, str)]
    return [-1 if i == computed[-1] else d for i, d in enumerate(found)]


def _in_file(node: Node, target: Sequence[Size], given: Sequence[int]) -> list[int]:
    wanted = [node.number(d) for d in target]
    zeros = not node.binding.attr("allowzero", 0)
    found = [given[i] if d == 0 and zeros and i < len(given) else d for i, d in enumerate(wanted)]
    if -1 in found:
        rest = int(np.prod([d for d in found if d != -1], dtype=np.int64))
        found[found.index(-1)] = int(np.prod(given, dtype=np.int64)) // max(rest, 1)
    return found


def _own(node: Node, target: Sequence[Size], given: Shape) -> Shape | None:
    """Returns the shape that the unchanged node makes at any size, or None without a formula."""
    zeros = not node.binding.attr("allowzero", 0)
    dims: list[Size] = [
        given[i] if d == 0 and zeros and i < len(given) else d for i, d in enumerate(target)
    ]
    if -1 not in dims:
        return tuple(dims)
    others = algebra.product(node.at.plain(d) for d in dims if d != -1)
    rest = algebra.exactly(algebra.product(map(node.at.plain, given)), others)
    return None if rest is None else tuple(rest if d == -1 else d for d in dims)


def _computed(node: Node, own: Shape, given: Shape, wanted: Sequence[int]) -> Shape:
    """Returns the shape for a target that the model computes from an open size.

    Axes that join several sizes remember them, so that a later Reshape can split them.
    """
    total, count = (algebra.product(map(node.at.plain, shape)) for shape in (given, own))
    if total is None or count is None:
        raise Refused("a size in it has no formula")
    if total != count:
        node.conditions.append((total, count))
    try:
        found = _placed(node, given, wanted)
    except Refused:
        return own
    return tuple(f if node.at.same(f, d) else d for f, d in zip(found, own, strict=True))


def _placed(node: Node, given: Shape, wanted: Sequence[int]) -> Shape:
    """Returns the target in which every open size keeps its place in memory. Raises Refused."""
    parts: list[Size] = [p for d in given for p in node.at.split(d)]
    numbers = [node.number(p) for p in parts]
    if 0 in numbers or 0 in wanted:
        raise Refused("it has no elements in the file")
    inner = np.cumprod([1, *numbers[::-1]])[::-1][1:]  # elements after each part
    found: list[Size] = []
    used: set[int] = set()
    behind = int(np.prod(wanted, dtype=np.int64))
    for size in wanted:
        top, behind = behind, behind // size
        inside = [
            i
            for i, p in enumerate(parts)
            if node.at.is_open(p)
            and behind <= inner[i]
            and inner[i] * numbers[i] <= top
            and numbers[i] > 1
            and inner[i] % behind == 0
            and top % (inner[i] * numbers[i]) == 0
        ]
        used.update(inside)
        taken = int(np.prod([numbers[i] for i in inside], dtype=np.int64))
        found.append(_size(node, size, [parts[i] for i in inside], size // taken))
    left = [i for i, p in enumerate(parts) if node.at.is_open(p) and i not in used]
    for i in left:
        if numbers[i] == 1 and _slot(node, i, parts, inner.tolist(), wanted, found):
            continue
        _divided(node, parts[i], numbers[i], int(inner[i]), wanted, found)
    return tuple(found)


def _size(node: Node, size: int, opened: Sequence[Size], rest: int) -> Size:
    if not opened:
        return size
    return node.at.joined([*opened, rest])


def _slot(
    node: Node,
    i: int,
    parts: Sequence[Size],
    inner: Sequence[int],
    wanted: Sequence[int],
    found: list[Size],
) -> bool:
    """Puts a size that is 1 in the file at an axis of size 1 with the same place in memory, in the
    order of such axes from the end. Returns whether there is one.
    """
    behind = np.cumprod([1, *wanted[::-1]])[::-1][1:]
    slots = [j for j, d in enumerate(wanted) if d == 1 and behind[j] == inner[i]]
    after = sum(node.number(p) == 1 and inner[k] == inner[i] for k, p in enumerate(parts) if k > i)
    free = [j for j in slots[: max(len(slots) - after, 1)] if found[j] == 1]
    if free:
        found[free[-1]] = parts[i]
    return bool(free)


def _divided(
    node: Node, part: Size, number: int, inner: int, wanted: Sequence[int], found: list[Size]
) -> None:
    """Splits a size over several axes if all but one of them divide it at any size. Raises Refused
    if it is not known which axis grows.
    """
    ends = np.cumprod([1, *wanted[::-1]])[::-1]
    axes = [
        j
        for j, d in enumerate(wanted)
        if d > 1 and ends[j + 1] >= inner and ends[j] <= inner * number
    ]
    choices = []
    for j in axes:
        rest = int(np.prod([wanted[i] for i in axes if i != j], dtype=np.int64))
        size = algebra.exactly(node.at.plain(part), rest)
        if size is not None and node.at.at(size) == wanted[j]:
            choices.append((j, size))
    if len(choices) != 1 or int(np.prod([wanted[j] for j in axes])) != number:
        text = " x ".join(str(wanted[j]) for j in axes) or "other axes"
        raise Refused(
            f"it splits {node.at.plain(part)}, {number} in the file, into {text}, and it is not "
            "known which of them grows: export with a dynamic axis"
        )
    found[choices[0][0]] = choices[0][1]


def expand(node: Node) -> Shape | None:
    """Axes of the operand that Expand does not repeat keep their open sizes."""
    given, target = node.shape(), node.elements(1)
    if target is None:
        raise Refused("its target is not known")
    before = len(target) - len(given)
    wanted = list(target)
    for axis, size in enumerate(given):
        i = axis + before
        if i < 0 or not node.at.is_open(size) or node.at.same(wanted[i], size) or wanted[i] == 1:
            continue
        if node.number(size) == 1 or node.number(wanted[i]) != node.number(size):
            raise Refused(f"it expands axis {axis}, whose size {node.at.plain(size)} is open")
        wanted[i] = 1
    if wanted != target:
        node.read(1, node.vector(wanted))
    return None
