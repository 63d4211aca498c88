"""Sequences of tensors, each of which has an axis for the rows in front."""

from __future__ import annotations

from onnxgrad.batching.layout import OWN, Refused
from onnxgrad.batching.registry import shifted
from onnxgrad.batching.site import Site, with_rows
from onnxgrad.ir.types import SequenceType, TensorType
from onnxgrad.ir.var import Var


@shifted("SequenceConstruct")
def construct(at: Site) -> None:
    """All tensors with rows, or none."""
    _made(at, at.again(*(with_rows(at, at.operand(k)) for k in at.present())))


@shifted("SequenceInsert")
def insert(at: Site) -> None:
    """A tensor with rows among others; a shared sequence must be empty."""
    sequence = at.operand(0)
    if at.at(2) is not None:
        raise Refused("its place differs from row to row")
    if at.at(0) is None:
        made = None if sequence is None else sequence.definition
        if made is None or made.op != "SequenceEmpty":
            raise Refused("its other tensors have no rows")
    _made(at, at.again(sequence, with_rows(at, at.operand(1)), at.operand(2)))


@shifted("SequenceErase")
def erase(at: Site) -> None:
    """The others keep their rows."""
    at.only_first()
    _made(at, at.again(*at.operands))


@shifted("SequenceLength")
def length(at: Site) -> None:
    """The same in every row."""
    at.replaced = [(at.again(*at.operands), None)]


@shifted("SequenceAt")
def element(at: Site) -> None:
    """A tensor with its rows."""
    at.only_first()
    made = at.again(*at.operands)
    shape = at.binding.out.shape
    made.type = TensorType(at.binding.out.dtype, None if shape is None else (1, *shape))
    at.back(made)


@shifted("SplitToSequence")
def split(at: Site) -> None:
    """Along an axis of one row."""
    if at.batched() != [0]:
        raise Refused("its parts differ from row to row")
    axis = at.axis("axis", 0, at.rank(0)) + 1
    _made(at, at.again(at.front(0), *at.operands[1:], axis=axis))


@shifted("ConcatFromSequence")
def join(at: Site) -> None:
    """Along an axis of one row."""
    axis = int(at.attr("axis"))
    made = at.again(at.operand(0), axis=axis + 1 if axis >= 0 else axis)
    shape = at.binding.out.shape
    made.type = TensorType(at.binding.out.dtype, None if shape is None else (1, *shape))
    at.back(made)


def _made(at: Site, made: Var) -> None:
    """A sequence of values with rows has the type of tensors with an axis in front."""
    old = at.binding.out.type
    element = old.elem if isinstance(old, SequenceType) else None
    if isinstance(element, TensorType):
        shape = None if element.shape is None else (None, *element.shape)
        made.type = SequenceType(TensorType(element.dtype, shape))
    at.replaced = [(made, OWN)]
