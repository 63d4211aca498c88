"""Chooses the matrices of a model that get adapters, and finds the products, filters and lookups
that read them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.weights.readers import WEIGHTS
from onnxgrad.grad.wrt import entries_of
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import TYPE_READS
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES, dtype_name, element_count, is_static
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted, perhaps, what_there_is

Kind = Literal["right", "left", "conv", "rows"]
_CONTRIB = "com.microsoft"
# products of integers, which read a quantised matrix without a DequantizeLinear
_INTEGER = {
    "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1, "QGemm": 3,
    "QLinearMatMul": 3, "QLinearConv": 3, "ConvInteger": 1, "GatherBlockQuantized": 0,
    "MatMulBnb4": 1,
}  # fmt: skip


class Declined(Exception):
    """The reason why a weight cannot have an adapter."""


@dataclass(frozen=True)
class Use:
    """One reader of a matrix W, or of its transpose: x @ M ("right"), M @ x ("left"), a 1x1
    convolution with M ("conv"), rows of M ("rows"), with M = W or, if `transposed`, W^T.

    other: the slot of x. scale: the operator's own factor of the product.
    """

    binding: Binding
    kind: Kind
    other: int
    transposed: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Read:
    """An operand that is a weight, possibly behind Transpose, Cast, Identity and
    DequantizeLinear.
    """

    binding: Binding
    slot: int
    transposed: bool

    @property
    def of_weight(self) -> bool:
        """Whether the operand is the trained weight, its quantised form, or read by a
        nested body.
        """
        b = self.binding
        if b.domain == _CONTRIB and b.op == "MatMulNBits":
            return self.slot == 1
        called = any(key[:2] == (b.domain, b.op) for key in b.block.program.functions)
        if called or b.blocks:  # its use inside of a body is not analysed
            return True
        return self.slot in WEIGHTS.get(b.op, {}) or _INTEGER.get(b.op) == self.slot

    @property
    def where(self) -> str:
        """The reader, for messages."""
        name = self.binding.node.name or self.binding.out.name
        return f"{self.binding.op} '{name}'"


def reads(v: Var, transposed: bool = False) -> Iterator[Read]:
    """Yields the operands that are a weight, possibly behind Transpose, Cast, Identity and
    DequantizeLinear, and whose values are read.
    """
    for b in v.users:
        for slot in b.places(v):
            if not b.domain and (b.op, slot) in TYPE_READS:
                continue
            if b.is_op("Transpose") and v.rank == 2 and b.attr("perm", ()) == (1, 0):
                yield from reads(b.out, not transposed)
            elif b.is_op("Identity") or _to_float(b, slot):
                yield from reads(b.out, transposed)
            else:
                yield Read(b, slot, transposed)


def _to_float(b: Binding, slot: int) -> bool:
    casts = b.is_op("Cast") or b.is_op("DequantizeLinear")
    return casts and slot == 0 and b.out.dtype in FLOAT_DTYPES


def returned(v: Var) -> bool:
    """Whether a graph returns the value, possibly transposed."""
    return bool(v.returned) or any(
        returned(b.out)
        for b in v.users
        if b.op in ("Transpose", "Identity", "Cast", "DequantizeLinear")
    )


def use_of(read: Read, shape: tuple[int, ...]) -> Use:
    """Returns how an operator uses a weight of that shape. Raises Declined."""
    b = read.binding
    if b.domain == _CONTRIB and b.op == "MatMulNBits" and read.slot == 1:
        return Use(b, "right", 0)
    if b.domain == "" and b.op == "Conv" and read.slot == 1:
        return _of_conv(read, shape)
    if b.domain != "" or b.op not in ("MatMul", "Gemm", "Gather") or not read.of_weight:
        raise Declined(f"{read.where} reads it, which cannot have an adapter")
    if len(shape) != 2:
        raise Declined(
            f"{read.where} reads {counted(len(shape), 'axis', 'axes')} of it: adapters are for "
            "matrices"
        )
    if b.op == "Gather":
        return _of_gather(read)
    return _of_product(read)


def _of_product(read: Read) -> Use:
    """Returns the use by MatMul or by Gemm, alpha A' B' + beta C. Raises Declined."""
    b, slot = read.binding, read.slot
    if slot > 1:
        raise Declined(f"it is the bias of {read.where}")
    x = b.inputs[1 - slot]
    if x is b.inputs[slot]:
        raise Declined(f"{read.where} multiplies it with itself")
    side: Kind = "right" if slot else "left"
    if b.op == "Gemm":
        flipped = read.transposed != bool(b.attr("transB" if slot else "transA", 0))
        return Use(b, side, 1 - slot, flipped, float(b.attr("alpha", 1.0)))
    if slot == 0 and (x is None or x.rank is None):
        raise Declined(f"{read.where} multiplies it with a value of unknown rank")
    if slot == 0 and x is not None and x.rank == 1:
        # onnxruntime 1.31 multiplies a transposed matrix with a vector wrongly: M x = x M^T
        return Use(b, "right", 1, not read.transposed)
    return Use(b, side, 1 - slot, read.transposed)


def _of_conv(read: Read, shape: tuple[int, ...]) -> Use:
    if (group := read.binding.attr("group", 1)) != 1:
        raise Declined(f"{read.where} has group={group}: adapters are for group=1")
    if any(n != 1 for n in shape[2:]) or len(shape) < 3:
        kernel = "x".join(map(str, shape[2:]))
        raise Declined(f"{read.where} has a {kernel} kernel: adapters are for 1x1")
    return Use(read.binding, "conv", 0)


def _of_gather(read: Read) -> Use:
    if read.binding.attr("axis", 0) % 2 != 0:
        raise Declined(f"{read.where} reads columns: adapters apply to rows, axis 0")
    return Use(read.binding, "rows", 1, read.transposed)


# the metadata key under which torch.onnx writes the modules around a node
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class Site:
    """A matrix W and all its readers. `reason`: why it cannot have an adapter.

    sides: rows and columns of W as its readers see it; of a 1x1 filter (out, in). inputs_first:
    inputs enter by the rows, so that W + A B is adapted, else W + (A B)^T.
    """

    weight: Var
    reads: tuple[Read, ...]
    uses: tuple[Use, ...] = ()
    sides: tuple[int, int] = (0, 0)
    reason: str = ""

    @property
    def name(self) -> str:
        """The name of the weight."""
        return self.weight.name

    @property
    def inputs_first(self) -> bool:
        """Whether inputs enter by the rows, as the first reader sees them."""
        return (self.uses[0].kind in ("right", "rows")) != self.uses[0].transposed

    @property
    def is_table(self) -> bool:
        """Whether the first reader looks up rows."""
        return self.uses[0].kind == "rows"

    @property
    def inputs(self) -> int:
        """The number of input features."""
        return self.sides[0 if self.inputs_first else 1]

    @property
    def outputs(self) -> int:
        """The number of output features."""
        return self.sides[1 if self.inputs_first else 0]

    @property
    def dtype(self) -> int:
        """The element type of the product."""
        return self.uses[0].binding.out.dtype

    @property
    def quantised(self) -> bool:
        """Whether the file stores integers."""
        return self.weight.dtype not in FLOAT_DTYPES

    @property
    def is_matrix(self) -> bool:
        """Whether an operator uses it as a weight; masks and tables of constants are not."""
        return any(r.of_weight for r in self.reads)

    @cached_property
    def labels(self) -> frozenset[str]:
        """The names that globs are matched with: the weight, its readers, and their modules."""
        return frozenset({self.name}).union(*(_labels(r.binding) for r in self.reads))

    @property
    def module(self) -> str:
        """The innermost module of the first reader, as the exporter recorded it; empty if
        unknown.
        """
        scopes = _scopes(self.reads[0].binding) if self.reads else []
        return scopes[-2] if len(scopes) > 1 else ""  # the last is the operator

    def answers(self, glob: str) -> bool:
        """Whether the name or glob matches."""
        return any(label == glob or fnmatchcase(label, glob) for label in self.labels)


def _labels(b: Binding) -> set[str]:
    return {name for name in (b.node.name, *_scopes(b)) if name}


def _scopes(b: Binding) -> list[str]:
    """Returns the modules around a node, outermost first, and torch's name of the node."""
    written = next((e.value for e in b.node.metadata_props if e.key == _SCOPES), "[]")
    try:
        scopes = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [s for s in scopes if isinstance(s, str)] if isinstance(scopes, list) else []


def sites(program: Program) -> list[Site]:
    """Returns every constant of the main graph with at least two axes, in the file's order;
    integers only if they are weights.
    """
    others = (TensorProto.BOOL, TensorProto.STRING)
    stored = (v for v in program.main.vars() if v.initializer is not None or v.is_constant)
    found = (_site(v) for v in stored if (v.rank or 0) >= 2 and v.dtype not in others)
    return [s for s in found if not s.quantised or s.is_matrix]


def _site(v: Var) -> Site:
    by = tuple(reads(v))
    shape = v.shape or ()
    try:
        if returned(v):
            raise Declined("the model returns it")
        if not by or not is_static(shape) or not element_count(shape):
            raise Declined("nothing reads it" if not by else "it has no elements")
        uses = tuple(use_of(r, shape) for r in by)
        sides = _packed(uses[0].binding) or (shape[0], shape[1])
        _check_outputs(uses)
    except Declined as why:
        return Site(v, by, reason=str(why))
    return Site(v, by, uses, sides)


def _packed(b: Binding) -> tuple[int, int] | None:
    """Returns the sides of a matrix whose elements share bytes, or None."""
    return (int(b.attr("K")), int(b.attr("N"))) if b.op == "MatMulNBits" else None


def _check_outputs(uses: Sequence[Use]) -> None:
    """Raises Declined unless all readers compute floats of one dtype."""
    of = {u.binding.out.dtype: u.binding for u in uses}
    if 0 in of:
        raise Declined(
            f"the dtype of '{of[0].out.name}', the result of its {of[0].op}, is unknown: declare "
            "it in the file's value_info"
        )
    if len(of) > 1:
        found = " and ".join(sorted(dtype_name(dtype) for dtype in of))
        raise Declined(f"the results of its readers have several dtypes, {found}")
    if not of.keys() <= FLOAT_DTYPES:
        (dtype,) = of
        raise Declined(f"the dtype of its readers' results, {dtype_name(dtype)}, cannot be trained")


def choose(program: Program, targets: str | Sequence[str]) -> list[Site]:
    """Returns the matrices that `targets` matches, in the file's order: names and globs; "!GLOB"
    excludes names that earlier entries matched.

    Globs skip constants that no operator uses as a weight, such as masks. Raises InputError for an
    entry that matches nothing, and, with the reason, for a matrix that cannot be adapted.
    """
    names = (targets,) if isinstance(targets, str) else targets
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"targets must be names or globs, not {targets!r}")
    known = sites(program)
    found: dict[str, Site] = {}
    entries = entries_of(targets, {s.name for s in known})
    for entry in entries:
        if entry.startswith("!"):
            _take_away(found, entry[1:])
            continue
        meant = [s for s in known if s.answers(entry)]
        if not meant:
            raise InputError(_met_nothing(entry, known))
        found |= {s.name: s for s in [s for s in meant if s.is_matrix] or meant}
    if not found:
        raise InputError("targets leave no weight to adapt")
    _check(found.values())
    return [s for s in known if s.name in found]


def _take_away(found: dict[str, Site], glob: str) -> None:
    meant = [name for name, s in found.items() if s.answers(glob)]
    if not meant:
        raise InputError(
            f"targets '!{glob}' excludes nothing: no entry before it matches the same names"
        )
    for name in meant:
        del found[name]


def _met_nothing(entry: str, known: Iterable[Site]) -> str:
    known = [s for s in known if s.is_matrix]
    labels = {label for s in known for label in s.labels}
    names = [s.name if s.module in s.name else f"{s.name} ({s.module})" for s in known]
    near = perhaps(entry, labels, 3) or what_there_is(names)
    return (
        f"targets '{entry}' matches no matrix of the main graph by the name of a weight, node or "
        f"module{near}"
    )


def _check(chosen: Iterable[Site]) -> None:
    """Raises InputError for the first site that cannot be adapted."""
    bad = [s for s in chosen if s.reason]
    if bad:
        more = f" (nor can {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise InputError(
            f"'{bad[0].name}' cannot have an adapter{more}: {bad[0].reason}: exclude it with "
            f"'!{bad[0].name}'"
        )
