"""f(split(y)_1), f(split(y)_2), ... = split(f(y)): what stands behind a merged product moves
above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.parallel.parts import GatheredParts, Parts, SplitParts, StackedParts
from onnxgrad.rewrite.attempt import Attempt
from onnxgrad.rewrite.trace import Decline, Trace, decline

# one operand, element by element; Softmax and its kin look across the axis that was merged, so they
# are not here
ELEMENTWISE = frozenset(
    {
        "Abs",
        "Celu",
        "Clip",
        "Cos",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Mish",
        "Neg",
    }
    | {
        "Relu",
        "Selu",
        "Sigmoid",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
    }
)
# two operands, element by element, one of them the branch; where it may stand second
_BESIDE = {"Add": True, "Mul": True, "Sub": False, "Div": False, "PRelu": False}


def lift_above_split(emitted: Sequence[Binding], trace: Trace) -> None:
    """Move what stands behind the parts in `emitted` above them, for as long as all branches
    agree.
    """
    for found in list(_parts(emitted)):
        parts: Parts | None = found
        while parts is not None and not trace.stopped:
            parts = _operation(parts, trace) or _activation(parts, trace)


def _parts(emitted: Sequence[Binding]) -> Iterable[Parts]:
    for b in emitted:
        found: Parts | None = None
        if b.is_op("Split") and b.is_live:
            found = StackedParts.read(b) or SplitParts.read(b)
        elif b.is_op("Conv") and b.is_live and b.attr("group") > 1:
            found = GatheredParts.read(b.out)
        if found is not None:
            yield found


def _operation(parts: Parts, trace: Trace) -> Parts | None:
    """split(y)_1 + c1, split(y)_2 + c2, ... = split(y + concat(c1, c2, ...)); a branch without bias
    adds -0.0.

    Sub, Mul, Div and PRelu too, where each branch has one.
    """
    found = [_beside(out, parts) for out in parts.outs]
    readers = [None if pair is None else pair[0] for pair in found]
    first = next((b for b in readers if b is not None), None)
    if first is None or any(first.op != "Add" if b is None else b.op != first.op for b in readers):
        return None
    operands = [None if pair is None else pair[1] for pair in found]
    # an operand that is computed from another branch would close a cycle
    if any(c is not None and _comes_from(c, parts) for c in operands):
        return None
    replaced = [out if b is None else b.out for out, b in zip(parts.outs, readers, strict=True)]

    def whole() -> Var | Decline:
        joined = parts.join(operands)
        if joined is None:
            return decline(
                f"what {first.op} takes has sizes that differ, or that would have to be known"
            )
        moved: Var = getattr(op, first.op)(parts.whole, joined)
        return moved

    return _moved(f"{first.op.lower()}_of_split", parts, replaced, whole, trace)


def _beside(out: Var, parts: Parts) -> tuple[Binding, Var] | None:
    """The operation that is this branch's only reader, and its other operand, when the whole can
    have that too.
    """
    user = out.sole_user()
    if user is None or user.block is not parts.whole.block:
        return None  # behind a nested block's door
    # before opset 7 they broadcast by an attribute
    if user.domain != "" or user.op not in _BESIDE or user.version < 7:
        return None
    if out.rank is None or user.out.rank != out.rank:
        return None
    second = user.inputs[0] is not out
    other = user.inputs[0 if second else 1]
    if (
        other is None
        or other.dtype != out.dtype
        or (second and not _BESIDE[user.op])
        or not parts.takes(other, out)
    ):
        return None
    return user, other


def _moved(
    law: str,
    parts: Parts,
    replaced: Sequence[Var],
    whole: Callable[[], Var | Decline],
    trace: Trace,
) -> Parts | None:
    """The parts of `whole`, which stand for `replaced`, what the branches were or what was done
    to them.
    """
    moved: list[Parts] = []

    def build() -> dict[Var, Var] | Decline:
        value = whole()
        if isinstance(value, Decline):
            return value
        moved.append(parts.again(value))
        return dict(zip(replaced, moved[0].outs, strict=True))

    readers = [v.definition for v in replaced if v.definition is not None]
    sources = [*parts.made, *(b for b in readers if b not in parts.made)]
    touched = Attempt(law, str(parts.made[0]), parts.whole.block, sources)(trace, build)
    parts.whole.block.remove_unused(parts.made)
    return None if touched is None else moved[0]


def _comes_from(v: Var, parts: Parts) -> bool:
    b = v.definition
    beside = [
        operand.definition for operand in parts.made[0].reads() if operand.definition is not None
    ]
    return b is not None and (b in parts.made or b.depends_on(set(parts.made), beside))


def _activation(parts: Parts, trace: Trace) -> Parts | None:
    """f(split(y)_1), f(split(y)_2), ... = split(f(y)) for one elementwise f"""
    users = [v.sole_user() for v in parts.outs]
    first = users[0]
    if first is None or first.domain != "" or first.op not in ELEMENTWISE or first.has_refs:
        return None
    readers = [u for u in users if u is not None]
    if len(readers) < len(users) or not all(_same_function(u, first) for u in readers):
        return None
    if first.block is not parts.whole.block or any(
        u.inputs[0] is not out for u, out in zip(readers, parts.outs, strict=True)
    ):
        return None

    def whole() -> Var:
        activated: Var = getattr(op, first.op)(parts.whole, *first.inputs[1:], **first.attrs)
        return activated

    return _moved("activation_of_split", parts, [u.out for u in readers], whole, trace)


def _same_function(a: Binding, b: Binding) -> bool:
    """Same operator, attributes and further operands (Clip's bounds), all of them constants."""
    rest = a.inputs[1:]
    return (
        a.is_op(b.op, b.domain)
        and a.block is b.block
        and a.attrs == b.attrs
        and rest == b.inputs[1:]
        and all(v is None or v.is_constant for v in rest)
    )
