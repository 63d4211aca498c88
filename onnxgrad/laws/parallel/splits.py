"""f(split(y)_1), f(split(y)_2), ... = split(f(y)): biases and activations behind a merged product move above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.topological_order import depends_on
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.parallel.concat_and_split import concat
from onnxgrad.rewrite.attempt import Attempt
from onnxgrad.rewrite.trace import Trace

# one operand, element by element; Softmax and its kin look across the axis that was merged, so they are not here
ELEMENTWISE = frozenset(
    {"Abs", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Neg"}
    | {"Relu", "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu"}
)


def lift_above_split(emitted: Sequence[Binding], trace: Trace) -> None:
    """Move biases, then activations, above each Split in `emitted` for as long as all branches agree."""
    for b in emitted:
        split: Binding | None = b if b.op == "Split" and b.is_live else None
        while split is not None and not trace.stopped:
            split = _add_of_split(split, trace) or _activation_of_split(split, trace)


def lift_activations(emitted: Sequence[Binding], trace: Trace) -> None:
    """Move activations alone above each Split in `emitted`, along whichever axis it splits."""
    for b in emitted:
        split: Binding | None = b if b.op == "Split" and b.is_live else None
        while split is not None and not trace.stopped:
            split = _activation_of_split(split, trace)


def _bias(out: Var) -> tuple[Binding, Var] | None:
    """The Add that is this branch's only reader, and what it adds, when that is one value per column."""
    user = out.sole_user()
    if user is None or user.block is not out.block:
        return None  # behind a nested block's door
    if not user.is_op("Add") or out.shape is None or user.out.rank != len(out.shape):
        return None
    bias = user.inputs[1] if user.inputs[0] is out else user.inputs[0]
    if bias is None or bias.shape is None or bias.dtype != out.dtype:
        return None
    n = out.shape[-1]
    leading, last = bias.shape[:-1], bias.shape[-1] if bias.shape else 1
    if n is None or any(d != 1 for d in leading) or not (last == n or (last == 1 and bias.is_constant)):
        return None
    return user, bias


def _add_of_split(split: Binding, trace: Trace) -> Binding | None:
    """split(y)_1 + c1, split(y)_2 + c2, ... = split(y + concat(c1, c2, ...)); a branch without bias adds -0.0"""
    outs = [v for v in split.outputs if v is not None]
    found = [_bias(v) for v in outs]
    adds = [pair[0] for pair in found if pair is not None]
    y = split.inputs[0]
    if not adds or y is None or any(v.shape is None or not isinstance(v.shape[-1], int) for v in outs):
        return None
    # a bias that is computed from another branch would close a cycle
    biases = [None if pair is None else pair[1] for pair in found]
    if any(c is not None and _comes_from(c, split) for c in biases):
        return None
    replaced = [v if pair is None else pair[0].out for v, pair in zip(outs, found, strict=True)]

    def build() -> dict[Var, Var]:
        rows = [_row(c, v) for c, v in zip(biases, outs, strict=True)]
        moved = op.Split(y + concat(rows, axis=0), _parts(split), axis=split.attr("axis"), outputs=len(outs))
        return dict(zip(replaced, moved, strict=True))

    return _moved("add_of_split", split, adds, build, trace)


def _moved(
    law: str, split: Binding, readers: Sequence[Binding], build: Callable[[], dict[Var, Var]], trace: Trace
) -> Binding | None:
    """The Split that stands for `split` and the readers that moved above it."""
    touched = Attempt(law, str(split), split.block, [split, *readers])(trace, build)
    split.block.remove_unused([split])
    return None if touched is None else next(b for b in reversed(touched.emitted) if b.op == "Split")


def _comes_from(v: Var, split: Binding) -> bool:
    b = v.definition
    beside = [operand.definition for operand in split.reads() if operand.definition is not None]
    return b is not None and (b is split or depends_on(b, {split}, beside))


def _parts(split: Binding) -> Any:
    """The sizes of the parts, an operand or (before opset 13) an attribute."""
    return split.inputs[1] if len(split.inputs) > 1 else split.attr("split")


def _row(bias: Var | None, out: Var) -> Var:
    """The bias of one branch as (N,), for a known N."""
    n = out.shape[-1] if out.shape else 1
    if bias is None:
        return constant(np.full(n if isinstance(n, int) else 1, -0.0, numpy_dtype(out.dtype)), name="no_bias")
    if bias.const is not None and isinstance(n, int):
        return constant(np.broadcast_to(bias.const.reshape(-1), (n,)), name=f"{bias.name}_row")
    return bias if bias.rank == 1 else op.Reshape(bias, [-1])


def _activation_of_split(split: Binding, trace: Trace) -> Binding | None:
    """f(split(y)_1), f(split(y)_2), ... = split(f(y)) for one elementwise f"""
    outs = [v for v in split.outputs if v is not None]
    users = [v.sole_user() for v in outs]
    first, y = users[0], split.inputs[0]
    if first is None or y is None or first.domain != "" or first.op not in ELEMENTWISE:
        return None
    if any(u is None or not _same_function(u, first) or u.inputs[0] is not v for u, v in zip(users, outs, strict=True)):
        return None
    if first.block is not split.block or first.has_refs:
        return None
    readers = [u for u in users if u is not None]

    def build() -> dict[Var, Var]:
        activated = getattr(op, first.op)(y, *first.inputs[1:], **first.attrs)
        moved = op.Split(activated, _parts(split), axis=split.attr("axis"), outputs=len(outs))
        return {u.out: new for u, new in zip(readers, moved, strict=True)}

    return _moved("activation_of_split", split, readers, build, trace)


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
