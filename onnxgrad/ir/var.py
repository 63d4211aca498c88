"""One SSA value. `a * b` on two values emits a binding (see `ir.emission`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes
from onnxgrad.ir.derivations import Step
from onnxgrad.ir.text import SHOWN, array_text
from onnxgrad.ir.traced_arrays import tracing
from onnxgrad.ir.types import Array, Shape, TensorType, Type

if TYPE_CHECKING:
    from onnxgrad.ir.binding import Binding
    from onnxgrad.ir.block import BindingBlock
    from onnxgrad.ir.program import Journal


class Emits(Protocol):
    """Appends bindings; `emission.emitter` has the implementation."""

    @property
    def emit(self) -> Callable[..., Any]: ...


# the emitter that `a * b` and `op.X(...)` use
EMITTER: ContextVar[Emits] = ContextVar("onnxgrad_emitter")
# arrays up to this many bytes stay decoded on their Var; larger ones are decoded at each request
_CACHED_BYTES = 1 << 14


class Var:
    """One SSA value: a name, a type, its definition and its readers."""

    __slots__ = (
        "_array",
        "block",
        "definition",
        "hidden",
        "initializer",
        "is_input",
        "is_literal",
        "name",
        "reads",
        "returned",
        "source",
        "type",
        "users",
        "variable",
    )
    # an array leaves `array + var` to the value, instead of adding element by element
    __array_ufunc__ = None

    def __init__(self, name: str, block: BindingBlock, type_: Type | None = None) -> None:
        self.name = name
        self.block = block
        self.definition: Binding | None = None
        self.initializer: TensorProto | None = None
        self.is_input = False
        # an initializer whose value will be replaced: nothing may be computed from it
        self.variable = False
        # an initializer whose value the file may replace later: runs see a constant, but nothing
        # may be computed from it now
        self.hidden = False
        # a constant that a formula emitted in this process: no weight
        self.is_literal = False
        # receives the name of this value when its constant is read
        self.reads: dict[str, None] | None = None
        self.users: dict[Binding, int] = {}
        self.returned = 0
        # None if nothing is known
        self.type = type_
        self._array: Array | None = None
        # how it was computed from weights, while that is recorded (`ir.derivations`)
        self.source: Step | None = None

    @property
    def dtype(self) -> int:
        """The ONNX element type; 0 if it is unknown or the value is not a tensor."""
        type_ = self.type
        return type_.dtype if isinstance(type_, TensorType) else 0

    @property
    def shape(self) -> Shape | None:
        """The symbolic shape; None if the rank is unknown or the value is not a tensor."""
        type_ = self.type
        return type_.shape if isinstance(type_, TensorType) else None

    @property
    def rank(self) -> int | None:
        """The number of axes, None if it is unknown."""
        shape = self.shape
        return None if shape is None else len(shape)

    @property
    def use_count(self) -> int:
        """How many operand slots and block outputs read this value."""
        return sum(self.users.values()) + self.returned

    @property
    def is_constant(self) -> bool:
        """Whether the file fixes its value: an initializer that callers cannot override, or a
        Constant binding.
        """
        if self.definition is not None:
            return (
                self.definition.op == "Constant"
                and self.definition.domain == ""
                and not self.definition.has_refs
            )
        return self.initializer is not None and not self.overridable and not self.variable

    @property
    def overridable(self) -> bool:
        """Whether it is an initializer that is also a graph input: from IR 4 on callers may
        override it.
        """
        return self.is_input and self.initializer is not None and self.block.program.ir_version >= 4

    @property
    def const(self) -> Array | None:
        """The constant value, None if there is none or if it is hidden. Treat it as read-only."""
        if self.hidden:
            return None
        if self.reads is not None:
            self.reads[self.name] = None
        if self._array is not None and not self.variable:
            return tracing(self._array, self.source, self.block.program.derivations)
        if not self.is_constant:
            return None
        value = (
            self.initializer
            if self.definition is None
            else attributes.constant_value(self.definition.attrs)
        )
        array = self.block.program.array(value) if isinstance(value, TensorProto) else value
        if array is not None and array.nbytes <= _CACHED_BYTES:
            self._array = array
        return tracing(array, self.source, self.block.program.derivations)

    def set_constant(self, tensor: TensorProto) -> None:
        """Replaces the value of a constant; dtype and shape may differ. Raises InternalError for
        other values.
        """
        if self.definition is not None and self.is_constant:
            for name in [n for n in self.definition.attrs if n != "value"]:
                self.definition.drop_attribute(name)
            self.definition.set_attribute("value", tensor)
        elif self.initializer is not None:
            if self.block.program.journal is not None:
                self.block.program.journal.constant(self, False)
            self.initializer = tensor
        else:
            raise InternalError(f"cannot set the value of a Var that is not a constant: {self!r}")
        self.type = TensorType(tensor.data_type, tuple(tensor.dims))
        self._array = None
        self.source = None
        self.block.touch()

    @property
    def ints(self) -> tuple[int, ...] | None:
        """A constant integer scalar or vector as a tuple (axes, sizes, perms), None for other
        values.
        """
        is_vector = self.initializer is None or len(self.initializer.dims) <= 1
        is_integer = self.dtype in (TensorProto.INT64, TensorProto.INT32)
        array = self.const if is_vector and is_integer and self.is_constant else None
        return None if array is None or array.ndim > 1 else tuple(array.reshape(-1).tolist())

    @property
    def is_shared(self) -> bool:
        """Whether several bindings read this value."""
        return len(self.users) > 1

    def sole_user(self) -> Binding | None:
        """The binding that reads this value, if exactly one operand slot reads it and no block
        returns it; else None.
        """
        if self.returned or len(self.users) != 1:
            return None
        ((user, slots),) = self.users.items()
        return user if slots == 1 else None

    @property
    def typed_name(self) -> str:
        """`name: type`, or the name if the type is unknown."""
        return self.name if self.type is None else f"{self.name}: {self.type}"

    @property
    def declaration(self) -> str:
        """Its text as a parameter of its block: name, type, and a constant's value if it is
        small.
        """
        tensor = self.initializer
        if tensor is None:
            return self.typed_name
        shown = ""
        if isinstance(self.type, TensorType) and self.dtype != TensorProto.STRING:
            small = math.prod(tensor.dims) <= SHOWN
            if small and tensor.data_location != TensorProto.EXTERNAL:
                shown = f" = {array_text(numpy_helper.to_array(tensor))}"
        return f"{self.typed_name} {'default' if self.overridable else 'const'}{shown}"

    @property
    def is_interface(self) -> bool:
        """Whether it is a graph input, whose name callers use. Inputs of nested blocks and
        functions are passed by position.
        """
        return self.is_input and self.block.owner is None and not self.block.is_function

    def rename(self, name: str) -> None:
        """Takes another name, which must be free. Raises InternalError for a graph input."""
        if self.name == name:
            return
        if self.is_interface:
            raise InternalError(
                f"renaming graph input '{self.name}' to '{name}' would change the model's interface"
            )
        if self.block.program.journal is not None:
            self._note(self.block.program.journal)
        if self.initializer is not None:  # keep the order of the file
            own = self.block.initializers
            self.block.initializers = {name if v is self else key: v for key, v in own.items()}
        self.name = name
        self.block.program.names.add(name)
        if self.definition is not None:
            self.definition.changed = True
        for user in self.users:
            user.changed = True
            user.block.touch()
        for block in self.blocks_returning():
            block.touch()
        self.block.touch()

    def _note(self, journal: Journal) -> None:
        """Tells the journal that the name changes, wherever it is written."""
        if self.definition is not None:
            journal.changes(self.definition)
        if self.initializer is not None:
            journal.constant(self, False)
        if self.is_input:
            journal.frames(self.block)
        for user in self.users:
            journal.changes(user)
        for block in self.blocks_returning():
            journal.frames(block)

    def swap_names(self, other: Var) -> None:
        """Exchanges names with another value."""
        mine, theirs = self.name, other.name
        self.rename(theirs)
        other.rename(mine)

    def blocks_returning(self) -> list[BindingBlock]:
        """Returns the blocks that return this value: its own, and nested ones that return it
        directly. Nested blocks are searched only if uses remain, which is rare.
        """
        if not self.returned:
            return []
        block = self.block
        own = sum(v is self for v in (*block.outputs, *block.pinned))
        found = [block] if own else []
        if own != self.returned:
            found += [
                nested
                for b in block.walk()
                for nested in b.blocks.values()
                if any(v is self for v in (*nested.outputs, *nested.pinned))
            ]
        return found

    # ---- emission: each operator appends a binding to the block that `emitting` names ------------

    def __add__(self, other: Any) -> Var:
        return _emit("Add", self, other)

    def __radd__(self, other: Any) -> Var:
        return _emit("Add", other, self)

    def __sub__(self, other: Any) -> Var:
        return _emit("Sub", self, other)

    def __rsub__(self, other: Any) -> Var:
        return _emit("Sub", other, self)

    def __mul__(self, other: Any) -> Var:
        return _emit("Mul", self, other)

    def __rmul__(self, other: Any) -> Var:
        return _emit("Mul", other, self)

    def __truediv__(self, other: Any) -> Var:
        return _emit("Div", self, other)

    def __rtruediv__(self, other: Any) -> Var:
        return _emit("Div", other, self)

    def __pow__(self, other: Any) -> Var:
        return _emit("Pow", self, other)

    def __matmul__(self, other: Any) -> Var:
        return _emit("MatMul", self, other)

    def __neg__(self) -> Var:
        return _emit("Neg", self)

    @property
    def mT(self) -> Var:
        """The matrix transpose, by numpy's name: the last two axes swapped. The rank must be
        known and at least 2.
        """
        if self.rank is None or self.rank < 2:
            raise InternalError(f"matrix transpose of {self!r}: needs a known rank of at least 2")
        perm = [*range(self.rank - 2), self.rank - 1, self.rank - 2]
        return _emit("Transpose", self, perm=perm)

    def __repr__(self) -> str:
        return f"<Var {self.name}: {self.type or '?'}>"


def names_of(values: Iterable[Var | None]) -> list[str]:
    """The names of operands or results as a node has them: "" if one is omitted."""
    return ["" if v is None else v.name for v in values]


def current_emitter() -> Emits:
    """The emitter in force; raises InternalError outside of `emitting`."""
    try:
        return EMITTER.get()
    except LookupError:
        raise InternalError(
            "operators are emitted in a rule's function only: a pattern is written with P, as in "
            "P.Relu(x), not with op"
        ) from None


def _emit(op_type: str, *operands: Any, **attrs: Any) -> Var:
    result: Var = current_emitter().emit(op_type, operands, attrs)
    return result
