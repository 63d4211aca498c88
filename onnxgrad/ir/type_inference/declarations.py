"""What a file declares about its results: believed where inference leaves something open, and only
as far as the two agree everywhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from onnx import GraphProto, ValueInfoProto

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.type_inference.whole_model import is_invented
from onnxgrad.ir.types import Dim, Shape, TensorType, Type, type_from_proto
from onnxgrad.ir.var import Var


class Declarations:
    """The declared types of the main block's results and of those in blocks nested in it.

    `symbols` are all names of sizes that the file gives. A name that it gives to two sizes of which
    inference knows that they differ, or not that they are equal, is no name of a size: it is taken
    off the declarations of results.
    """

    def __init__(self, program: Program) -> None:
        self.between: dict[BindingBlock, dict[str, Type]] = {}
        self.returned: dict[BindingBlock, dict[str, Type]] = {}
        self.symbols: set[str] = set()
        # many values, few types: what was found about each, and about each pair
        self._incomplete: dict[Type | None, bool] = {}
        self._merged: dict[tuple[Type | None, Type | None], Type | None] = {}
        self.ambiguous: set[str] = set()
        work = [program.main]
        for block in work:  # grows while it is walked
            proto = block.proto
            self.between[block] = self._read(proto.value_info)
            self.returned[block] = self._read(proto.output) if isinstance(proto, GraphProto) else {}
            for v in block.inputs:
                self.symbols.update(_symbols(v.type))
            work.extend(nested for b in block.bindings for nested in b.blocks.values())

    def _read(self, values: Iterable[ValueInfoProto]) -> dict[str, Type]:
        found = {}
        for value in values:
            type_ = type_from_proto(value.type)
            if type_ is not None:
                found[value.name] = type_
                self.symbols.update(_symbols(type_))
        return found

    def compare(self) -> set[str]:
        """Hold the types that the results have now against the declarations.

        Finds the ambiguous symbols, and returns the results whose declaration contradicts what was
        inferred, without those that were inferred from such.
        """
        meanings: dict[str, set[Dim]] = defaultdict(set)
        contradicted: set[Var] = set()
        agree: dict[tuple[Type | None, Type], bool] = {}
        for block in self.between:
            for var, said in self._declared(block):
                pair = var.type, said
                if pair not in agree:
                    agree[pair] = self._agree(*pair, meanings)
                if not agree[pair]:
                    contradicted.add(var)
        for block in self.between:
            for v in block.inputs:
                for symbol in _symbols(v.type):
                    if symbol in meanings:
                        meanings[symbol].add(symbol)
        self.ambiguous = {symbol for symbol, known in meanings.items() if len(known) > 1}
        return _roots(next(iter(self.between)), contradicted) if contradicted else set()

    def _agree(self, inferred: Type | None, said: Type, meanings: dict[str, set[Dim]]) -> bool:
        """Whether both may be right; if so, what the one knows of the sizes that the other names
        goes to `meanings`.
        """
        if not isinstance(inferred, TensorType) or not isinstance(said, TensorType):
            return True
        if said.shape is None or inferred.shape is None:
            return True
        if contradicts(inferred.shape, said.shape):
            return False
        for known, symbol in zip(inferred.shape, said.shape, strict=True):
            if isinstance(symbol, str) and not self.is_open(known):
                meanings[symbol].add(known)
        return True

    def _declared(self, block: BindingBlock) -> Iterable[tuple[Var, Type]]:
        between, returned = self.between[block], self.returned[block]
        if not between and not returned:
            return
        for b in block.bindings:
            for out in b.outputs:
                if out is None:
                    continue
                for declared in (between, returned):
                    if out.name in declared:
                        yield out, declared[out.name]

    def is_open(self, dim: Dim) -> bool:
        """Unknown, or only named by onnx, which makes up a name for each size that it cannot
        compute.
        """
        return dim is None or (
            isinstance(dim, str) and is_invented(dim) and dim not in self.symbols
        )

    def is_incomplete(self, type_: Type | None) -> bool:
        """Whether a declaration could add something."""
        known = self._incomplete.get(type_)
        if known is None:
            known = type_ is None
            if isinstance(type_, TensorType):
                known = (
                    not type_.dtype or type_.shape is None or any(map(self.is_open, type_.shape))
                )
            self._incomplete[type_] = known
        return known

    def believed(self, said: Type) -> Type:
        """A declared type without ambiguous symbols."""
        if (
            not isinstance(said, TensorType)
            or said.shape is None
            or self.ambiguous.isdisjoint(said.shape)
        ):
            return said
        return TensorType(said.dtype, tuple(None if d in self.ambiguous else d for d in said.shape))

    def merge(self, inferred: Type | None, said: Type | None) -> Type | None:
        """What both tell together. Sizes they contradict each other in are unknown: either may
        be wrong.
        """
        pair = inferred, said
        if pair not in self._merged:
            self._merged[pair] = self._together(inferred, said)
        return self._merged[pair]

    def _together(self, inferred: Type | None, said: Type | None) -> Type | None:
        if inferred is None or said is None:
            return inferred or said
        if not isinstance(inferred, TensorType) or not isinstance(said, TensorType):
            return inferred
        if inferred.dtype and said.dtype != inferred.dtype:
            return inferred
        if said.shape is None or inferred.shape is None:
            return TensorType(said.dtype, said.shape if inferred.shape is None else inferred.shape)
        if len(inferred.shape) != len(said.shape):
            return TensorType(said.dtype, None)
        pairs = list(zip(inferred.shape, said.shape, strict=True))
        # what is wrong in one place is not believed in another
        if contradicts(inferred.shape, said.shape):
            return TensorType(said.dtype, tuple(None if _differ(i, s) else i for i, s in pairs))
        return TensorType(
            said.dtype, tuple(s if s is not None and self.is_open(i) else i for i, s in pairs)
        )


def contradicts(inferred: Shape, said: Shape) -> bool:
    """Whether two shapes cannot both be right."""
    return len(inferred) != len(said) or any(map(_differ, inferred, said))


def _differ(a: Dim, b: Dim) -> bool:
    return a != b and isinstance(a, int) and isinstance(b, int)


def _symbols(type_: Type | None) -> list[str]:
    shape = type_.shape if isinstance(type_, TensorType) else None
    return [d for d in shape if isinstance(d, str)] if shape else []


def _roots(main: BindingBlock, contradicted: set[Var]) -> set[str]:
    """The names of the contradicted values that no other contradicted value leads to."""
    tainted: set[Var] = set()
    roots: set[str] = set()

    def visit(block: BindingBlock) -> bool:
        found = False
        for b in block.bindings:
            reached = any(v in tainted for v in b.inputs)
            for nested in b.blocks.values():
                reached = visit(nested) or reached
            wrong = [v.name for v in b.outputs if v is not None and v in contradicted]
            if wrong and not reached:
                roots.update(wrong)
            if wrong or reached:
                tainted.update(v for v in b.outputs if v is not None)
                found = True
        return found

    visit(main)
    return roots
