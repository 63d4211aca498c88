"""The body of onnxruntime's MoE (com.microsoft), which computes what its CPU kernel computes.

Shapes: T tokens, H hidden size, E experts, F size between an expert's two products. The body
computes all experts for all tokens, in two products; the k experts of a token are those with a
coefficient.
"""

from __future__ import annotations

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import plus, size_along
from onnxgrad.ir.emission.fill_and_reshape import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Bodies, decline
from onnxgrad.laws.bodies.fused import fast_gelu

_INTERLEAVED = 1


def _moe(
    x: Var,
    router: Var,
    w1: Var,
    b1: Var | None,
    w2: Var,
    b2: Var | None,
    w3: Var | None,
    b3: Var | None,
    *,
    k: int = 1,
    activation_type: str = "relu",
    normalize_routing_weights: int = 0,
    binding: Binding,
) -> Var:
    """Returns the sum over experts e of c[t, e] (f(x w1[e]^T + b1[e]) w2[e]^T + b2[e]).

    x: (T, H) or (.., T', H), router: (T, E), w1: (E, F or 2 F, H), b1: (E, F or 2 F), w2: (E, H,
    F), b2: (E, H).
    """
    decline(binding, "a third product (fc3)", w3 is not None or b3 is not None)
    decline(binding, "use_sparse_mixer", bool(binding.attr("use_sparse_mixer", 0)))
    late = bool(binding.attr("swiglu_limit_after_activation", 0))
    decline(binding, "swiglu_limit_after_activation", late)
    share = _shares(router, k, bool(normalize_routing_weights))
    hidden = op.Flatten(x, axis=-1) @ op.Flatten(w1, axis=2).mT
    hidden = plus(hidden, None if b1 is None else op.Reshape(b1, [-1]))
    by_expert = op.Reshape(hidden, op.Concat([0], size_along(w1, 0), [-1], axis=0))
    active = _activated(by_expert, activation_type, binding) * op.Unsqueeze(share, [2])
    rows = op.Reshape(op.Transpose(w2, perm=[0, 2, 1]), op.Concat([-1], size_along(w2, 1), axis=0))
    y = op.Flatten(active, axis=1) @ rows
    return reshape_like(plus(y, None if b2 is None else share @ b2), x)


def _shares(router: Var, k: int, normalize: bool) -> Var:
    """Returns the coefficient of each expert (T, E): its probability if it is among the k largest,
    else 0. If probabilities are equal, the kernel takes the later one, and TopK the earlier one.
    """
    likely = _reversed(op.Softmax(router, axis=-1))
    best, places = op.TopK(likely, [k], axis=-1, outputs=2)
    if normalize:
        best = best / op.ReduceSum(best, [1], keepdims=1)
    return _reversed(op.ScatterElements(zeros_like(likely), places, best, axis=1))


def _reversed(v: Var) -> Var:
    """The second axis backwards."""
    return op.Slice(v, [-1], [-(2**31)], [1], [-1])


def _activated(v: Var, name: str, binding: Binding) -> Var:
    """v: (T, E, F), or (T, E, 2 F) for swiglu, whose gates and values alternate."""
    if name == "swiglu":
        alternate = binding.attr("swiglu_fusion", 0) == _INTERLEAVED
        decline(binding, "swiglu without swiglu_fusion=1", not alternate)
        gate, value = (op.Slice(v, [first], [2**31 - 1], [2], [2]) for first in (0, 1))
        limit = binding.attr("swiglu_limit", None)
        if limit is not None:
            gate, value = op.Min(gate, limit), op.Clip(value, -limit, limit)
        alpha, beta = binding.attr("activation_alpha", 1.0), binding.attr("activation_beta", 0.0)
        turned = gate if alpha == 1 else gate * alpha
        return gate * op.Sigmoid(turned) * (value if beta == 0 else value + beta)
    if name == "relu":
        return op.Relu(v)
    if name == "gelu":
        return fast_gelu(v, None)
    if name == "silu":
        return v * op.Sigmoid(v)
    decline(binding, f"activation_type '{name}'", name != "identity")
    return v


BODIES: Bodies = {"MoE": (_moe, "without fc3; all experts are computed")}
