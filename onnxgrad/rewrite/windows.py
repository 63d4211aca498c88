"""Cuts the window of a rewrite out of two consecutive states: both forms on one boundary.

Values are those of the program, whatever their names: a value that a rewrite renames keeps one name
in both forms. If a reader that stays reads another value now, the rewrite claims that the two
values are equal. If a binding changes in place, it claims that its results stay. `widen` adds the
bindings that compute the boundary, for rewrites that rely on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import ARITHMETIC, TYPE_READS, VIEWS
from onnxgrad.ir.program import Program, called
from onnxgrad.ir.storage.external_data import internalize
from onnxgrad.ir.types import TensorType, type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.journal import Difference, Image
from onnxgrad.verify.exact.window import Window

# operands with instructions: different values may mean the same
_INSTRUCTIONS = TYPE_READS | {("Reshape", 1)}
# operators of shape arithmetic: their bindings belong to each window that reads their results
_SIZES = frozenset((
    *ARITHMETIC, *VIEWS, "Cast", "Concat", "ConstantOfShape", "Equal", "Gather", "Max", "Min",
    "Range", "ReduceProd", "Shape", "Size", "Slice", "Split", "Where",
))  # fmt: skip
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})
# the most bindings of a window with its context
_LARGEST = 400
_OLD, _NEW = 0, 1


class NoWindow(Exception):
    """The change has no window that could be decided; the message says why."""


@dataclass
class _Side:
    """One side of a window: bindings in order, constants, and values of the boundary."""

    images: list[Image] = field(default_factory=list)
    constants: dict[Var, None] = field(default_factory=dict)
    inputs: dict[Var, None] = field(default_factory=dict)


class Cut:
    """The window of one difference. Raises NoWindow."""

    def __init__(
        self, program: Program, difference: Difference, *, at_readers: bool = False
    ) -> None:
        """`at_readers`: include the readers of exchanged values, instead of claiming that these
        are equal.
        """
        self.program = program
        self.difference = difference
        self.claims: dict[tuple[Var, Var], None] = {}
        # bindings computed in another way, by their results, before and after
        self._made: tuple[dict[Var, Image], dict[Var, Image]] = ({}, {})
        self._kept: dict[Binding, Image] = {}  # former images of bindings with exchanged operands
        self._changed: dict[Binding, None] = {}
        self._taken: set[Var] = set()  # results of bindings that are context
        self._labels: dict[str, Var] = {}
        self._sort(at_readers)
        self._check()

    # ---- claims ----------------------------------------------------------------------------------

    def _sort(self, at_readers: bool) -> None:
        """Divides the differences into changed bindings and claims."""
        for b, (before, after) in self.difference.bindings.items():
            if before is None or after is None or at_readers or not _only_exchanges(before, after):
                self._change(b, before, after)
            else:
                self._kept[b] = before
                self._claim(zip(before.inputs, after.inputs, strict=True))
        for v in self.difference.tensors:
            for b in v.users:
                if b not in self._changed:
                    self._change(b, self._kept.get(b) or Image.of(b), Image.of(b))
        self._claim(self.difference.returned)
        for b in self._changed:
            before, after = self.difference.bindings.get(b, (Image.of(b), Image.of(b)))
            if before is not None and after is not None:
                there = set(before.outputs)
                self._claim((v, v) for v in after.outputs if v in there and self._leaves(v))

    def _change(self, b: Binding, before: Image | None, after: Image | None) -> None:
        self._changed[b] = None
        for made, image in zip(self._made, (before, after)):
            if image is not None:
                made.update((v, image) for v in image.outputs if v is not None)

    def _claim(self, pairs: Iterable[tuple[Var | None, Var | None]]) -> None:
        for u, v in pairs:
            if u is not None and v is not None and (u is not v or u in self._made[_NEW]):
                self.claims[u, v] = None

    def _leaves(self, v: Var | None) -> bool:
        """Whether something outside the changed bindings reads the value."""
        return v is not None and (bool(v.returned) or any(b not in self._changed for b in v.users))

    def _check(self) -> None:
        old, new = self.difference.opsets
        if any(new.get(domain) != version for domain, version in old.items()):
            raise NoWindow("it converts the opset")
        if self.difference.interface:
            raise NoWindow("it changes what a graph reads or returns")
        blocks = {b.block for b in self._changed}
        if any(block.is_function for block in blocks):
            raise NoWindow("it is inside a local function")
        for b in self._changed:
            if b.blocks:
                raise NoWindow(f"it changes {b.op}")
            if called(b) is not None:
                raise NoWindow("it changes the call of a local function")
            if b.is_read and draws(b):
                raise NoWindow(f"it changes {b.op}, which draws random numbers")
        if len(blocks) > 1 and self.claims:
            raise NoWindow(f"it moves computation {_between(blocks)}")

    # ---- context ---------------------------------------------------------------------------------

    def widen(self, levels: int) -> bool:
        """Adds the bindings that compute the boundary, `levels` times. Returns False if there was
        nothing to add, or if the window would be too large.
        """
        before = len(self._taken)
        for _ in range(levels):
            sides = self._sides()
            if sum(len(side.images) for side in sides) > 2 * _LARGEST:
                return False
            more = {v for side in sides for v in side.inputs if _is_context(v)}
            if not more:
                break
            self._taken |= more
        return len(self._taken) > before

    @property
    def is_whole(self) -> bool:
        """Whether the boundary consists of graph inputs: nothing outside could make both forms
        equal.
        """
        return all(v.is_interface for side in self._sides() for v in side.inputs)

    def _sides(self) -> tuple[_Side, _Side]:
        return self._side(_OLD), self._side(_NEW)

    def _side(self, at: int) -> _Side:
        """Walks from the claimed values up to the boundary."""
        return self._walk(at, [claim[at] for claim in self.claims])

    def _walk(self, at: int, results: list[Var]) -> _Side:
        side = _Side()
        work: list[tuple[Var, Image | None]] = [(v, None) for v in reversed(results)]
        placed: set[Var] = set()
        while work:
            v, finished = work.pop()
            if finished is not None:
                side.images.append(finished)
                continue
            if v in placed:
                continue
            placed.add(v)
            image = self._image(v, at)
            if image is None:
                (side.constants if _is_fixed(v) else side.inputs)[v] = None
            else:
                placed.update(_present(image.outputs))
                work.append((v, image))
                work += [(u, None) for u in _present(image.inputs) if u not in placed]
        return side

    def _image(self, v: Var, at: int) -> Image | None:
        """The binding that computes a value, if it is part of the window."""
        found = self._made[at].get(v)
        if found is not None:
            return found
        b = v.definition
        if b is None or not (v in self._taken or _is_constant_node(b) or _is_size(v)):
            return None
        return self._kept.get(b, Image.of(b)) if at == _OLD else Image.of(b)

    # ---- protobufs -------------------------------------------------------------------------------

    def window(self) -> Window:
        """Returns both forms. Raises NoWindow if the type of a boundary value is unknown."""
        sides = self._sides()
        inputs = list(dict.fromkeys(v for side in sides for v in side.inputs))
        untyped = next((v for v in inputs if not isinstance(v.type, TensorType)), None)
        if untyped is not None:
            raise NoWindow("the type of an operand is unknown, or no tensor")
        old, new = (
            self._model(side, inputs, [claim[at] for claim in self.claims], at)
            for at, side in enumerate(sides)
        )
        claims = tuple((self._label(u), self._label(v)) for u, v in self.claims)
        made = tuple(self._label(v) for v in sides[_NEW].constants if self._is_new(v))
        return Window(old, new, claims, (), self._witnesses(), made)

    def _is_new(self, v: Var) -> bool:
        """Whether a constant is new, or has another value than before."""
        return v in self.difference.made or v in self.difference.tensors

    def _model(self, side: _Side, inputs: list[Var], results: list[Var], at: int) -> ModelProto:
        model = ModelProto(ir_version=self.program.ir_version)
        for domain, version in self.difference.opsets[at].items():
            model.opset_import.add(domain=domain, version=version)
        graph = model.graph
        graph.name = "window"
        graph.node.extend(self._node(image) for image in side.images)
        graph.input.extend(self._typed(v) for v in inputs)
        graph.output.extend(self._typed(v) for v in dict.fromkeys(results))
        graph.value_info.extend(
            self._typed(v)
            for image in side.images
            for v in _present(image.outputs)
            if v.type is not None
        )
        for v in side.constants:
            graph.initializer.append(self._tensor(v, at))
        return model

    def _node(self, image: Image) -> NodeProto:
        node = NodeProto()
        node.CopyFrom(image.node)
        node.input[:] = ["" if v is None else self._label(v) for v in image.inputs]
        node.output[:] = ["" if v is None else self._label(v) for v in image.outputs]
        del node.metadata_props[:]
        return node

    def _typed(self, v: Var) -> ValueInfoProto:
        return ValueInfoProto(name=self._label(v), type=type_to_proto(v.type))

    def _tensor(self, v: Var, at: int) -> TensorProto:
        former = self.difference.tensors.get(v) if at == _OLD else None
        source = v.initializer if former is None else former
        if source is None:
            raise NoWindow(f"the constant {v.name} cannot be read")
        if source.data_location == TensorProto.EXTERNAL:
            source = internalize(source, self.program.folder)
        tensor = TensorProto()
        tensor.CopyFrom(source)
        tensor.name = self._label(v)
        return tensor

    def _label(self, v: Var) -> str:
        """The name of a value in both forms. Two values never share one."""
        name = v.name
        while self._labels.setdefault(name, v) is not v:
            name += "'"
        return name

    def _witnesses(self) -> Mapping[str, ModelProto]:
        """The graph that computes each new initializer from old ones, where the old form does."""
        found = {}
        for u, v in self.claims:
            if v in self.difference.made and u is not v:
                side = self._walk(_OLD, [u])
                if not side.inputs:
                    found[self._label(v)] = self._model(side, [], [u], _OLD)
        return found


def _only_exchanges(before: Image, after: Image) -> bool:
    """Whether a binding differs by operands alone, each of which may stand for the former one."""
    pairs = list(zip(before.inputs, after.inputs, strict=False))
    return (
        len(before.inputs) == len(after.inputs)
        and before.outputs == after.outputs
        and before.calls_as(after)
        and all((u is None) == (v is None) for u, v in pairs)
        and not any(
            u is not v and (before.node.op_type, i) in _INSTRUCTIONS
            for i, (u, v) in enumerate(pairs)
        )
    )


def _present(values: Iterable[Var | None]) -> list[Var]:
    return [v for v in values if v is not None]


def _is_fixed(v: Var) -> bool:
    return v.initializer is not None and v.is_constant


def _is_constant_node(b: Binding) -> bool:
    return b.is_op("Constant") and not b.has_refs


def _is_context(v: Var) -> bool:
    """Whether the binding that computes the value can be added to a window."""
    b = v.definition
    return b is not None and not b.blocks and not draws(b) and called(b) is None and not b.has_refs


def _is_size(v: Var) -> bool:
    """Whether the value is the result of shape arithmetic."""
    b = v.definition
    return (
        b is not None
        and b.domain == ""
        and b.op in _SIZES
        and v.dtype in _INTEGERS
        and v.rank in (0, 1)
        and not b.has_refs
    )


def _between(blocks: Iterable[BindingBlock]) -> str:
    owners = dict.fromkeys(block.owner.op for block in blocks if block.owner is not None)
    return f"across {' and '.join(owners)}" if owners else "between functions"
