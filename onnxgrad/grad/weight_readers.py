"""Who reads a constant in the end: behind what only moves its elements, into calls, branches and
loops.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from onnxgrad.grad.paths import edges
from onnxgrad.grad.registry import INTERNAL
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.bodies import called
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var

# the first operand comes out with its elements elsewhere, or in another dtype
MOVES = frozenset(
    {
        "Cast", "CastLike", "DepthToSpace", "DequantizeLinear", "Dropout", "Expand", "Flatten",
        "Identity", "QuantizeLinear", "Reshape", "Shadowed", "Slice", "SpaceToDepth", "Split",
        "Squeeze", "StraightThrough", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """`binding` reads `value` as operand `slot`: the constant itself, or it moved."""

    value: Var
    binding: Binding
    slot: int

    @property
    def others(self) -> list[Var]:
        """The other operands."""
        return [v for i, v in enumerate(self.binding.inputs) if v is not None and i != self.slot]


def moves(b: Binding, slot: int) -> bool:
    """Whether the operand only moves."""
    return slot == 0 and b.op in MOVES and b.domain in ("", INTERNAL)


def constants_only(program: Program) -> set[Var]:
    """What is computed from the file alone: constants, initializers, and results of those."""
    found: set[Var] = set()
    for block in program.blocks():
        block.schedule()
        found.update(v for v in block.vars() if v.is_constant or v.initializer is not None)
        found.update(block.sparse)
        for b in block.bindings:
            if b.inputs and not b.blocks and all(v is None or v in found for v in b.inputs):
                found.update(v for v in b.outputs if v is not None)
    return found


def readers(v: Var, fixed: Collection[Var], ends: Collection[str]) -> Iterator[Reader]:
    """Who reads `v`, and what is made of it by moves or, for more than one element, from constants
    alone.

    Only readers that pass it a gradient count. `ends`: the operators at which the way ends even if
    all that they read is in `fixed`.
    """
    todo, seen = [v], {v}

    def follow(found: list[Var | None]) -> None:
        new = [w for w in found if w is not None and w not in seen]
        seen.update(new)
        todo.extend(new)

    for read in todo:
        follow(_given_by_branches(read))
        for b in list(read.users):
            if read not in edges(b):
                continue
            for slot in b.places(read):
                inside = _inside(b, slot)
                if inside is not None:
                    follow([inside])
                elif moves(b, slot) or _is_of_constants(b, read, fixed, ends):
                    follow(list(b.outputs))
                else:
                    yield Reader(read, b, slot)


def _is_of_constants(b: Binding, read: Var, fixed: Collection[Var], ends: Collection[str]) -> bool:
    if b.op in ends or not all(v is None or v in fixed for v in b.outputs):
        return False
    return not (b.op == "Div" and b.inputs[1] is read) and (b.op == "Concat" or not is_one(read))


def is_one(v: Var) -> bool:
    """A single element."""
    return v.shape is not None and all(n == 1 for n in v.shape)


def _inside(b: Binding, slot: int) -> Var | None:
    """What a call, a Loop or a Scan calls its operand inside."""
    key = called(b)
    if key is not None:
        inputs = b.block.program.functions[key].inputs
        return inputs[slot] if slot < len(inputs) else None
    body = b.blocks.get("body")
    if body is None or slot >= len(body.inputs):
        return None
    inside = body.inputs[slot]
    # a state that stays is no state
    return inside if not is_state(b, slot) or inside in body.outputs else None


def is_state(b: Binding, slot: int) -> bool:
    """Whether a Loop or Scan begins with the operand and goes on with what its body makes of it."""
    return (b.is_op("Loop") and slot >= 2) or (
        b.is_op("Scan") and slot < len(b.inputs) - b.attr("num_scan_inputs", 0)
    )


def _given_by_branches(v: Var) -> list[Var | None]:
    owner = v.block.owner
    if not v.returned or owner is None or not owner.is_op("If"):
        return []
    return [owner.result(i) for i, given in enumerate(v.block.outputs) if given is v]
