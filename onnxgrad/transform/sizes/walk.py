"""Walks through a program to find the size of every axis from the inputs' open sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from onnx import TensorProto

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.errors import InputError
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.program import Program
from onnxgrad.ir.type_inference.per_binding import types_of
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements, sizes
from onnxgrad.ir.types import Dim, TensorType, Type, TypeMismatch
from onnxgrad.ir.var import Var
from onnxgrad.transform.sizes.agreement import Meeting, meetings
from onnxgrad.transform.sizes.arithmetic import Arithmetic
from onnxgrad.transform.sizes.bodies import Bodies
from onnxgrad.transform.sizes.expressions import Expressions, Fixed
from onnxgrad.transform.sizes.extensions import Extensions
from onnxgrad.transform.sizes.node import Node, Readings
from onnxgrad.transform.sizes.ones import always_one
from onnxgrad.transform.sizes.origins import NUMBERS, Origins
from onnxgrad.transform.sizes.targets import TARGETS, fixed_end, fixed_targets
from onnxgrad.wording import option


class Stuck(InputError):
    """The walk cannot continue at a node. `certain`: no other reading of its numbers would help.
    `doubts`: the readings of numbers in the nodes before it.
    """

    def __init__(
        self, text: str, *, certain: bool = False, doubts: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        super().__init__(text)
        self.certain, self.doubts = certain, dict(doubts or {})


EVERY = "*"  # in `follow`: all nodes
# operators whose results have axes that no operand has
_MAKERS = ("ConstantOfShape", "Expand", "Range", "Tile")
_AXES = 3  # the most axes of a value that are compared with open sizes
_TURNS = 2000  # the most numbers that can follow a size


@dataclass(frozen=True)
class Condition:
    """Two sizes that must be equal for the model to run, and the node that requires it."""

    left: Size
    right: Size
    node: str


@dataclass
class Followed:
    """The numbers that follow open sizes, the conditions on the sizes, and their bounds."""

    expressions: Expressions
    conditions: dict[Condition, None] = field(default_factory=dict)
    numbers: dict[str, None] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    most: dict[tuple[Size, int, str], None] = field(default_factory=dict)
    least: dict[tuple[Size, int, str], None] = field(default_factory=dict)
    readings: Readings = field(default_factory=Readings)
    extensions: Extensions = field(default_factory=Extensions)


def follow_sizes(
    program: Program,
    values: Mapping[str, int],
    follow: Collection[str] = (),
    readings: Readings | None = None,
    extend: Mapping[str, str] | None = None,
) -> Followed:
    """Follows the open sizes of the inputs through the main graph, and changes the graph so that it
    computes the numbers that were fixed sizes.

    values: the size in the file of each open symbol.
    follow: names of nodes whose fixed numbers follow the sizes.
    readings: readings of numbers to use in place of the likeliest ones.
    extend: readings of constants beyond the file's size, by name.

    Raises Stuck, which names the node, if a size cannot be followed.
    """
    main = program.main
    symbols = {s for v in main.inputs for d in v.shape or () for s in algebra.symbols(d)}
    others = sorted(symbols - values.keys())
    found = Followed(
        Expressions(values, others),
        readings=readings or Readings(),
        extensions=Extensions(extend or {}),
    )
    walk = _Walk(found, RunTimeSizes({}, main.inputs), follow)
    with emitting(main, made_by="open-batch"):
        for _ in range(_TURNS):
            main.schedule()
            if not walk.changes(list(main.bindings)) and not walk.chances([*main.walk()]):
                break
        main.schedule()
        found = walk.found
        numbers = Arithmetic(walk.at, walk.run_time, found.extensions, found.numbers, found.most)
        try:
            numbers.follow([*main.walk()], {*emitter().emitted})
        except Refused as error:
            text = f"the size cannot be opened: {error}"
            raise Stuck(text, certain=True, doubts=found.readings.offered) from None
        emitter().discard()
    walk.check_targets([*main.walk()])
    for b in main.walk():
        for v in b.outputs:
            if v is not None and isinstance(v.type, TensorType) and v.shape is not None:
                plain = tuple(map(walk.at.plain, v.shape))
                v.type = TensorType(v.dtype, plain)
    main.touch()
    return walk.found


class _Walk:
    def __init__(self, found: Followed, run_time: RunTimeSizes, follow: Collection[str]) -> None:
        self.found, self.run_time, self.at = found, run_time, found.expressions
        self._follow = follow
        self._seen: dict[Binding, object] = {}
        self._known = KnownElements()
        self.origins = Origins(self.at, run_time, found.numbers, found.most, found.extensions)
        self._bodies = Bodies(self.at, self.origins, self._each, self._met)

    def changes(self, bindings: Sequence[Binding]) -> bool:
        """Infers the types of every node in order. Returns whether a node changed."""
        self._known = KnownElements()
        self.origins.done.clear()
        return self._each(bindings)

    def _each(self, bindings: Sequence[Binding]) -> bool:
        changed = False
        for b in bindings:
            key, operands = self._key(b), [*b.inputs]
            if self._seen.get(b) == key and not b.blocks:
                continue
            try:
                again = self._visit(b)
            except (Refused, TypeMismatch) as error:
                text = f"{name_of(b)}: the size cannot be opened here: {error}"
                certain = isinstance(error, (Fixed, TypeMismatch))
                raise Stuck(text, certain=certain, doubts=self._doubts(b)) from None
            if again:
                return True
            self._seen[b] = self._key(b)
            changed = changed or [*b.inputs] != operands
        return changed

    def _doubts(self, b: Binding) -> dict[str, Iterable[str]]:
        """Returns the readings of numbers in this node and in the nodes before it."""
        before, left = {b: None}, [b]
        while left:
            for v in left.pop().reads():
                if v.definition is not None and v.definition not in before:
                    before[v.definition] = None
                    left.append(v.definition)
        offered = self.found.readings.offered
        return {name: offered[name] for d in before if (name := d.out.name) in offered}

    def _key(self, b: Binding) -> object:
        return [(v, None if v is None else v.type, self._elements(v)) for v in b.inputs]

    def _elements(self, v: Var | None) -> tuple[Dim, ...] | None:
        """Returns the elements of an operand that holds sizes, or None."""
        if v is None or v.is_constant or v.dtype not in (TensorProto.INT64, TensorProto.INT32):
            return None
        return sizes(v, self._known) if (v.rank or 0) < 2 else None

    def _touched(self, v: Var | None) -> bool:
        return v is not None and (
            any(map(self.at.is_open, v.shape or ()))
            or any(map(self.at.is_open, self._elements(v) or ()))
        )

    def _visit(self, b: Binding) -> bool:
        touched = [v for v in b.reads() if self._touched(v)]
        if b.blocks:
            return self._nested(b, touched)
        if not touched:
            self._type(b, types_of(b, self._known), ())
            return self._as_large(b)
        if self._met(b, self._meetings(b)):
            return True
        node = self._node(b)
        rule = TARGETS.get(b.op) if b.domain == "" else None
        shape = None if rule is None else rule(node)
        for left, right in node.conditions:
            self._condition(left, right, b)
        for size, number in node.least:
            self.found.least[self.at.plain(size) or size, number, name_of(b)] = None
        types = [shape] if shape is not None and len(b.outputs) == 1 else ()
        self._type(b, self._types(b), types)
        return self._as_large(b)

    def _nested(self, b: Binding, touched: Sequence[Var]) -> bool:
        """Follows sizes through the bodies of a node. Returns whether a node changed."""
        try:
            types = self._bodies.follow(self._node(b), touched)
        except Refused:
            if touched:
                raise
            return False
        if types is not None:
            self._type(b, types, ())
        return types is None

    def _met(self, b: Binding, meetings: Iterable[Meeting]) -> bool:
        """Makes axes of operands agree. Returns whether one changed."""
        wanted: dict[int, dict[int, Size]] = {}
        for meeting in meetings:
            self._meet(b, meeting, wanted)
        for k, axes in wanted.items():
            self.origins.follow(b, k, axes)
        return bool(wanted)

    def chances(self, bindings: Sequence[Binding]) -> bool:
        """Lets an axis follow an open size of equal value if that reading was chosen.

        Returns whether a node changed.
        """
        shapes = [v.shape for b in bindings for v in b.inputs if v is not None]
        opened = {
            p: None for s in shapes for d in s or () if self.at.is_open(p := self.at.plain(d))
        }
        numbers = {str(size): n for size in opened if (n := self.at.at(size)) is not None}
        self.found.readings.sizes.update(numbers)
        changed = [self._as_large(b) for b in bindings]
        return any(changed)

    def _as_large(self, b: Binding) -> bool:
        if b.domain or b.op not in NUMBERS or not self.found.readings.sizes:
            return False
        if b.op not in _MAKERS and any(self._touched(v) for v in b.reads()):
            return False
        shape, x = b.out.shape or (), b.inputs[0]
        given = (x and x.shape) or () if b.op in ("Expand", "Tile") else ()
        own = {len(shape) - len(given) + i: d for i, d in enumerate(given)}
        meanings: dict[str, dict[int, str]] = {}
        for symbol, number in self.found.readings.sizes.items():
            made = [number == 1 or own.get(a) != size for a, size in enumerate(shape)]
            axes = [a for a, size in enumerate(shape) if size == number and made[a]]
            for follows in product((False, True), repeat=min(len(axes), _AXES)):
                picked = {a: symbol for a, f in zip(axes, follows, strict=False) if f}
                text = (str(picked.get(a, d)) for a, d in enumerate(shape))
                meanings[f"[{', '.join(text)}]"] = picked
        table = b.op == "Slice"  # `*` counts, and takes no table
        node = self._node(b)
        wanted = node.choose(meanings, follows=-1, alone=table) if meanings else {}
        done = [NUMBERS[b.op](self.origins, b, axis, symbol) for axis, symbol in wanted.items()]
        return any(done)

    def _meetings(self, b: Binding) -> list[Meeting]:
        groups = meetings(b)
        if groups is None:
            raise Refused("no rule for open sizes")
        vague = next((v for v in b.inputs if v is not None and v.rank is None), None)
        if vague is not None:
            raise Refused(f"the rank of '{vague.name}' is not known")
        return groups

    def _node(self, b: Binding) -> Node:
        found = self.found
        named = not {b.node.name, b.out.name}.isdisjoint(self._follow)
        return Node(
            b, self.at, self.run_time, self._known, found.numbers, found.remarks, found.readings,
            found.extensions, named, EVERY in self._follow,
        )  # fmt: skip

    def check_targets(self, bindings: Iterable[Binding]) -> None:
        """Raises Stuck if a Resize has a fixed target, or a Slice a late end, that still does not
        follow an open size.
        """
        for b in bindings:
            late = fixed_end(self._node(b)) if b.op == "Slice" and not b.domain else None
            if late is not None:
                end, number = late[0], self.at.at(late[1])
                raise self._unsure(
                    f"{name_of(b)}: its end {end} of {number} may count from the end (write "
                    f"{int(end) - (number or 0)}) or not"
                )
            picked = b.out.name in self.found.readings.picked
            for target, size in () if picked else fixed_targets(self._node(b)):
                name = b.node.name or b.out.name
                follow = option(f"--follow {name}", f"follow=[{name!r}]")
                raise self._unsure(
                    f"{name_of(b)}: its target {target} is fixed, but its operand has the open "
                    f"size {self.at.plain(size)}: if the target is an open size, pass {follow}"
                )

    def _unsure(self, text: str) -> Stuck:
        return Stuck(text, certain=False, doubts=self.found.readings.offered)

    def _types(self, b: Binding) -> list[Type | None]:
        return types_of(b, KnownElements() if b.changed else self._known)

    def _meet(self, b: Binding, meeting: Meeting, wanted: dict[int, dict[int, Size]]) -> None:
        """Adds the axes of operands that must become open to `wanted`. Adds conditions if several
        axes are open.
        """
        sizes_at = {place: self._size(b, place) for place in meeting.places}
        opened = {p: d for p, d in sizes_at.items() if self.at.is_open(d)}
        if not opened:
            return
        best = min(opened.values(), key=lambda d: (len(str(self.at.plain(d))), str(d)))
        number = self.at.at(best)
        for (k, axis), size in sizes_at.items():
            if self.at.same(size, best):
                continue
            if meeting.broadcasts and size == 1:
                if number == 1 and not always_one(b.inputs[k], axis):
                    self._broadcast(b, k, axis, best)
                continue
            if self.at.at(size) != number:
                raise Fixed(self._apart(b, k, axis, best))
            if (k, axis) not in opened:
                wanted.setdefault(k, {})[axis] = best
                continue
            self._condition(size, best, b)
            self._rename(b.inputs[k], axis, best)

    def _broadcast(self, b: Binding, k: int, axis: int, best: Size) -> None:
        """An axis of size 1 meets an open size that is 1 in the file: it broadcasts, or else is
        longer at other sizes. Only the user who names the node can say which.
        """
        v, plain, node = b.inputs[k], self.at.plain(best), self._node(b)
        self.found.readings.alone.add(b.out.name)
        if v is not None and not node.choose(
            {f"'{v.name}' of size 1": True, f"'{v.name}' of size {plain} on axis {axis}": False},
            alone=True,
        ):
            raise Refused(f"axis {axis} of '{v.name}' {v.type} may be {plain}")

    def _size(self, b: Binding, place: tuple[int, int]) -> Size:
        k, axis = place
        v = b.operand(k)
        size = None if v is None or v.shape is None else v.shape[axis]
        if v is None or size is None:
            raise Refused(f"the size of axis {axis} of operand {k} has no formula")
        return size

    def _apart(self, b: Binding, k: int, axis: int, best: Size) -> str:
        v = b.inputs[k]
        shown = "?" if v is None else f"'{v.name}' {v.type}"
        return (
            f"axis {axis} of {shown} must equal the size {self.at.plain(best)}, which is "
            f"{self.at.at(best)} in the file"
        )

    def _condition(self, left: Size, right: Size, b: Binding) -> None:
        plain = self.at.plain(left), self.at.plain(right)
        if plain[0] is None or plain[1] is None:
            raise Refused("a size in it has no formula")
        self.found.conditions[Condition(plain[0], plain[1], name_of(b))] = None

    def _rename(self, v: Var | None, axis: int, size: Size) -> None:
        if v is not None and v.shape is not None:
            v.type = TensorType(v.dtype, (*v.shape[:axis], size, *v.shape[axis + 1 :]))

    def _type(
        self, b: Binding, types: Sequence[Type | None], shapes: Sequence[tuple[Size, ...]]
    ) -> None:
        for i, v in enumerate(b.outputs):
            if v is None or i >= len(types):
                continue
            type_ = types[i]
            if i < len(shapes):
                type_ = TensorType(v.dtype, shapes[i])
            if type_ is not None and not isinstance(type_, TensorType):
                v.type = type_
            elif type_ is not None and type_.shape is not None:
                v.type = TensorType(v.dtype or type_.dtype, tuple(self._formulas(b, v, type_)))

    def _formulas(self, b: Binding, v: Var, type_: TensorType) -> Iterator[Dim]:
        for axis, size in enumerate(type_.shape or ()):
            if not self.at.known(size):
                if any(self._touched(x) for x in b.reads()):
                    raise Refused(f"the size of axis {axis} of '{v.name}' has no formula")
                size = None
            yield size


def name_of(b: Binding) -> str:
    """Returns the operator and the name of a node, for messages."""
    return f"{b.op} '{b.node.name or b.out.name}'"
