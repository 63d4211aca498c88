"""Straight-through estimation: the gradient passes a quantisation as if nothing were rounded
between its bounds.

Rounding has a zero derivative almost everywhere, so the result is only an estimate (Bengio, Leonard
& Courville, 2013). The scale's gradient is that of learned step sizes (Esser et al., 2020). While
the gradient is formed, a StraightThrough stands after each pair of QuantizeLinear and
DequantizeLinear. The model's own values stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.inlining import open_call
from onnxgrad.grad.paths import influenced, reaching
from onnxgrad.grad.registry import INTERNAL, legalize_first, vjp
from onnxgrad.grad.unbroadcast import sum_by_scale
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import MOVES
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.identity_barrier import insert_barrier
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var, names_of
from onnxgrad.laws.quantized.legalize import LAWS
from onnxgrad.wording import counted, option

SHADOWED, STRAIGHT_THROUGH = "Shadowed", "StraightThrough"

BOUNDS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-(1 << 15), (1 << 15) - 1),
    TensorProto.UINT16: (0, (1 << 16) - 1),
    TensorProto.INT32: (-(1 << 31), (1 << 31) - 1),
}


def rounded_weights(block: BindingBlock, requested: Iterable[Var]) -> list[str]:
    """Returns a note on the matrices that only rounding keeps from being among `requested`, none if
    there are none.
    """
    ends = [b.inputs[0] for b in block.bindings if b.op in _ROUNDS and b.inputs[0] is not None]
    found, trained = reaching(block, ends), {v.name for v in requested}
    behind = [
        name
        for name, v in block.initializers.items()
        if v in found and (v.rank or 0) > 1 and name not in trained
    ]
    if not behind:
        return []
    ste = option("--ste", "ste=True")
    return [
        f"params leaves out {counted(len(behind), 'matrix', 'matrices')} before a QuantizeLinear, "
        f"such as '{behind[0]}': rounding passes no gradient; {ste} passes it straight through"
    ]


def open_rounding(program: Program) -> tuple[list[Binding], int]:
    """Puts a StraightThrough after each pair that quantises and dequantises by the same scale,
    whether or not operators move the integers in between. Returns the Identities that now define
    the pairs' values, and the number of quantisations that the gradient passes.

    Some stay unchanged: pairs with blocked scales, with scales per channel of an operand of unknown
    rank, or of an unsupported type, and each QuantizeLinear whose integers go elsewhere.
    """
    paths = open_paths(program)
    anchors = [*open_caches(program), *paths]
    lstms = open_lstms(program)
    pairs = [(b, x) for b in program.main.walk() if (x := _quantized(b)) is not None]
    for back, x in pairs:
        identity = insert_barrier(back.out)
        scale = back.inputs[1]
        zero = back.operand(2)
        low, high = BOUNDS[back.inputs[0].dtype] if back.inputs[0] is not None else (0, 0)
        with emitting(back.block, sources=(back,), made_by="straight_through"):
            passed = op.domain(INTERNAL).StraightThrough(
                x,
                scale,
                zero,
                back.out,
                axis=back.attr("axis") or 0,
                low=float(low),
                high=float(high),
            )
        passed.type = back.out.type
        back.block.set_operand(identity, 0, passed)
        anchors.append(identity)
    return [*anchors, *(anchor for opened in lstms for anchor in opened)], len(pairs) + len(
        lstms
    ) + len(paths)


def _quantized(back: Binding) -> Var | None:
    """Returns the value that was quantised to the operand of `back`, if the two are a pair."""
    if back.op != "DequantizeLinear" or back.domain not in _DOMAINS or back.inputs[0] is None:
        return None
    q, scale = back.inputs[0].definition, back.inputs[1]
    if q is None or q.domain != back.domain or q.block is not back.block:
        return None
    if back.inputs[0].dtype not in BOUNDS or scale is None or back.attr("block_size"):
        return None
    if back.inputs[0].dtype == TensorProto.INT32:
        return _rounded(q, scale)
    if q.op not in _ROUNDS or q.inputs[0] is None:
        return None
    if q.op == "QuantizeLinear":
        per_tensor = scale.rank == 0 or scale.shape == (1,)
        per_channel = scale.rank == 1 and q.inputs[0].rank is not None
        if q.attr("axis") != back.attr("axis") or not (per_tensor or per_channel):
            return None
    return q.inputs[0] if _same_scale(q, back) else None


def _rounded(cast: Binding, scale: Var) -> Var | None:
    """Returns x of Cast(Round(x / scale)): QuantizeLinear makes no integers of 32 bits."""
    steps = cast
    for name in ("Cast", "Round"):
        v = steps.inputs[0] if steps.op == name else None
        if v is None or v.definition is None:
            return None
        steps = v.definition
    return steps.inputs[0] if steps.op == "Div" and _is_from(steps.inputs[1], scale) else None


def _is_from(v: Var | None, scale: Var) -> bool:
    shaped = None if v is None else v.definition
    return v is scale or (shaped is not None and shaped.inputs[:1] == [scale])


def same_value(a: Var | None, b: Var | None) -> bool:
    """Whether two operands are the same value, both left out, or equal constants."""
    if a is b or a is None or b is None:
        return a is b
    x, y = a.const, b.const
    return x is not None and y is not None and np.array_equal(x, y)


# ---- y = scale * (clip(round(x / scale) + zero, low, high) - zero), rounding ignored -------------


def along(v: Var, x: Var, axis: int) -> Var:
    """Returns `v`, one number or one per channel, shaped so that it broadcasts against `x`."""
    if v.rank == 0 or v.shape == (1,):
        return v
    rank = x.rank or 1
    others = [i for i in range(rank) if i != axis % rank]
    return op.Unsqueeze(v, others) if others else v


def _inside(x: Var, scale: Var, zero: Var | None, binding: Binding) -> Var:
    """Returns the mask of elements inside the range: x / scale rounds into [low, high] - zero."""
    axis, low, high = (binding.attr(name) for name in ("axis", "low", "high"))
    steps = op.Div(x, along(scale, x, axis))
    if zero is not None:
        steps = steps + along(op.Cast(zero, to=x.dtype), x, axis)
    return op.And(op.GreaterOrEqual(steps, low - 0.5), op.LessOrEqual(steps, high + 0.5))


def _to_scale(g: Var, y: Var, x: Var, scale: Var, zero: Var | None, binding: Binding) -> Var:
    """Returns the scale's partial: -x / scale where nothing is clipped. The part of the integers
    arrives through DequantizeLinear.
    """
    axis = binding.attr("axis")
    inside = _inside(x, scale, zero, binding)
    each = op.Where(inside, g * op.Neg(op.Div(x, along(scale, x, axis))), 0.0)
    return sum_by_scale(each, scale, axis, x.rank or 1)


vjp(
    f"{INTERNAL}::{STRAIGHT_THROUGH}",
    lambda g, y, x, scale, zero, binding: op.Where(_inside(x, scale, zero, binding), g, 0.0),
    _to_scale,
    None,
    lambda g, y, x, scale, zero, value: g,
)


# ---- integers between QuantizeLinear and DequantizeLinear ----------------------------------------
#
# An operator f that moves elements, selects the largest or interpolates commutes with a
# DequantizeLinear D by one positive scale: D(f(q)) = f(D(q)), except for the rounding of an
# interpolation. So while the gradient is formed, the graph contains the same path once more in
# floats, and adjoints take that path.


_MOVES = frozenset((*MOVES, "MaxPool", "Pad", "Resize"))

_ROUNDS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})

_EDGES = _ROUNDS | {"DequantizeLinear"}
# com.microsoft's pair is the same, for integer types that ONNX added later
_DOMAINS = ("", "com.microsoft")

vjp(f"{INTERNAL}::{SHADOWED}", lambda g, y, shadow, value: g, None)


def open_paths(program: Program) -> list[Binding]:
    """Copies the path of integers before each DequantizeLinear by one scale in floats. Returns the
    Identities that now define the values of these bindings.
    """
    anchors = []
    for back in [b for b in program.main.walk() if b.is_op("DequantizeLinear")]:
        q, scale = back.inputs[0], back.inputs[1]
        if q is None or scale is None or not (scale.rank == 0 or scale.shape == (1,)):
            continue
        if q.definition is None or q.definition.op in _ROUNDS or not _passes(q, back):
            continue
        identity = insert_barrier(back.out)
        with emitting(back.block, share=True, sources=(back,), made_by="straight_through"):
            shadow = _in_floats(q, back, {})
        with emitting(back.block, sources=(back,), made_by="straight_through"):
            passed = op.domain(INTERNAL).Shadowed(shadow, back.out)
        passed.type = back.out.type
        back.block.set_operand(identity, 0, passed)
        anchors.append(identity)
    return anchors


def _data(b: Binding) -> dict[int, Var | None]:
    """Returns the operands that hold elements, by position. The others hold indices and sizes."""
    if b.op == "Concat":
        return dict(enumerate(b.inputs))
    value = b.operand(2) if b.op == "Pad" else None
    return {0: b.inputs[0]} if value is None else {0: b.inputs[0], 2: value}


def _passes(q: Var, back: Binding) -> bool:
    """Whether `q` is computed only by moves, from quantisations by the scale of `back` and
    constants.
    """
    work, seen, rounded = [q], {q}, False
    while work:
        b = work.pop().definition
        if b is None or b.op == "Constant":
            continue
        if b.block is not back.block or b.domain != "":
            return False
        if b.op in _ROUNDS:
            if not _same_scale(b, back):
                return False
            rounded = True
            continue
        moved = [v for v in _data(b).values() if v is not None]
        moves = b.op == "Concat" or (
            b.op in _MOVES and not (b.op == "MaxPool" and b.result(1) is not None)
        )
        if not moves or len(moved) < len(_data(b)):
            return False
        work += [v for v in dict.fromkeys(moved) if v not in seen]
        seen.update(moved)
    return rounded


def _same_scale(q: Binding, back: Binding) -> bool:
    if q.op == "DynamicQuantizeLinear":
        return (back.inputs[1], back.operand(2)) == (q.result(1), q.result(2))
    return same_value(q.inputs[1], back.inputs[1]) and same_value(q.operand(2), back.operand(2))


def _in_floats(q: Var, back: Binding, made: dict[Var, Var]) -> Var:
    """Emits the dequantised `q` by the same moves after a DequantizeLinear."""
    work = [q]
    while work:
        v = work[-1]
        b = v.definition
        if v in made:
            work.pop()
        elif b is None or b.op == "Constant" or b.op in _ROUNDS:
            made[v] = op.DequantizeLinear(v, back.inputs[1], back.operand(2))
        elif missing := [x for x in _data(b).values() if x is not None and x not in made]:
            work += missing
        else:
            _copy(b, made)
    return made[q]


def _copy(b: Binding, made: dict[Var, Var]) -> None:
    block, data = b.block, _data(b)
    inputs = [made[v] if v is not None and i in data else v for i, v in enumerate(b.inputs)]
    node = copy_of(b.node)
    node.name = block.program.names.fresh(f"{b.op.lower()}_of_floats")
    node.input[:] = names_of(inputs)
    node.output[:] = [
        "" if v is None else block.program.names.fresh(f"{v.name}_float") for v in b.outputs
    ]
    first = next(made[v] for v in data.values() if v is not None)
    types = [
        None if v is None else TensorType(first.dtype or TensorProto.FLOAT, v.shape)
        for v in b.outputs
    ]
    copy = block.append(node, inputs, types)
    made.update(
        (old, new)
        for old, new in zip(b.outputs, copy.outputs)
        if old is not None and new is not None
    )


# ---- GroupQueryAttention: its body rounds new keys and values if its cache is quantised ----------


def open_caches(program: Program) -> list[Binding]:
    """Opens each GroupQueryAttention with a scale of its cache. Returns the Identities that now
    define the results.
    """
    calls = [
        b
        for b in program.main.walk()
        if (b.domain, b.op) == ("com.microsoft", "GroupQueryAttention") and b.operand(12)
    ]
    anchors = [insert_barrier(v) for b in calls for v in list(b.outputs) if v is not None]
    for b in calls:
        open_call(b)
    return anchors


# ---- DynamicQuantizeLSTM: adjoints take the LSTM of its weights in floats ------------------------

DYNAMIC_LSTM = ("com.microsoft", "DynamicQuantizeLSTM")


def open_lstms(program: Program) -> list[list[Binding]]:
    """Puts an LSTM in floats beside each DynamicQuantizeLSTM. Returns the Identities that now
    define the results of each.
    """
    found = [b for b in program.main.walk() if (b.domain, b.op) == DYNAMIC_LSTM]
    return [_beside(b) for b in found]


def _beside(b: Binding) -> list[Binding]:
    identities = [None if v is None else insert_barrier(v) for v in b.outputs]
    with emitting(b.block, sources=(b,), made_by="straight_through"):
        x, *rest = (b.operand(i) for i in (0, 3, 4, 5, 6, 7))
        matrices = (_in_columns(b, i, scale) for i, scale in ((1, 8), (2, 10)))
        present = [v is not None for v in b.outputs]
        shadows = op.LSTM(x, *matrices, *rest, **b.attrs, outputs=present)
        for shadow, out, identity in zip(shadows, b.outputs, identities):
            if out is not None and identity is not None:
                passed = op.domain(INTERNAL).Shadowed(shadow, out)
                passed.type = out.type = shadow.type
                identity.out.type = identity.out.type or out.type
                b.block.set_operand(identity, 0, passed)
    return [identity for identity in identities if identity is not None]


def _in_columns(b: Binding, place: int, scale: int) -> Var:
    """Emits the floats (D, 4 H, inputs) of integers (D, inputs, 4 H) with a scale per direction or
    per column.
    """
    q, by, shift = b.operand(place), b.operand(scale), b.operand(scale + 1)
    if q is None or by is None or by.rank not in (1, 2):
        raise InputError(
            f"no gradient passes straight through '{b}': it lacks scales of its weights"
        )
    axes = [1] if by.rank == 2 else [1, 2]
    floats = op.Cast(q, to=by.dtype)
    if shift is not None:
        floats = floats - op.Unsqueeze(op.Cast(shift, to=by.dtype), axes)
    return op.Transpose(floats * op.Unsqueeze(by, axes), perm=[0, 2, 1])


# ---- what stops a gradient -----------------------------------------------------------------------


def why_zero(
    block: BindingBlock, sources: Iterable[Var], targets: Iterable[Var], *, ste: bool
) -> str:
    """Returns a text that names the binding between sources and targets that stops all adjoints,
    and a remedy; empty if no path exists. Raises InputError if `ste` is set and that binding
    quantises, because the gradient would be zero.
    """
    block.schedule()
    sources = list(sources)
    behind, before = set(sources), set(targets)
    for b in block.bindings:
        if any(v in behind for v in b.reads()):
            behind.update(v for v in b.outputs if v is not None)
    for b in reversed(list(block.bindings)):
        if any(v in before for v in b.outputs):
            before.update(b.reads())
    between = [
        b
        for b in block.bindings
        if any(v in behind for v in b.reads()) and any(v in before for v in b.outputs)
    ]
    integer = next((b for b in between if (b.domain, b.op) in LAWS and b.op not in _EDGES), None)
    if integer is not None:
        text = f"'{integer}': {legalize_first()}"
        if ste:
            raise InputError(f"no gradient passes straight through: {text}")
        return text
    alive = influenced(block, sources)
    place = {b: i for i, b in enumerate(block.bindings)}

    def depth(b: Binding) -> tuple[int, bool]:
        reached = [
            place.get(v.definition, -1) if v.definition else -1 for v in b.reads() if v in alive
        ]
        return max(reached), b.op in _ROUNDS  # prefer a quantisation to a Shape beside it

    reading = [b for b in between if any(v in alive for v in b.reads())]
    stop = max(
        (b for b in reading if not any(v in alive for v in b.outputs)), key=depth, default=None
    )
    if ste and stop is not None and stop.domain == "" and stop.op in _ROUNDS:
        reader = next((b for v in stop.outputs[:1] if v is not None for b in v.users), None)
        raise InputError(
            f"no gradient passes straight through '{stop}': its integers go to "
            f"{reader.op if reader else 'an output'}, no DequantizeLinear by the same scale"
        )
    return "" if stop is None else _why_it_ends(stop, ste)


def _why_it_ends(at: Binding, ste: bool) -> str:
    if at.domain == INTERNAL and at.inputs[0] is not None:
        return f"gradients stop at '{at.inputs[0].name}'"
    if at.op in _ROUNDS and not ste:
        return f"'{at}' rounds; {option('--ste', 'ste=True')} passes its gradient straight through"
    return f"'{at}' passes no gradient"
