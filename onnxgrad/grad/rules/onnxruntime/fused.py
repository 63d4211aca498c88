"""onnxruntime's own operators (com.microsoft), as its optimised model files hold them: each by its
body.

Where a gradient passes, the fused operator is replaced by the standard operators it was fused from,
which are differentiated as usual; onnxruntime fuses them again when it loads the file, as far as
nothing else reads what lies in between. So gradient graphs hold no com.microsoft operator on the
way, and second derivatives need nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import body
from onnxgrad.grad.rules._common import plus
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

_DOMAIN = "com.microsoft"
# the opset that brought Gelu
_GELU = 20


# ---- Gelu ----------------------------------------------------------------------------------------


def _has_gelu() -> bool:
    return emitter().block.opsets.get("", 0) >= _GELU


def _gelu(x: Var) -> Var:
    """x Phi(x)."""
    return op.Gelu(x) if _has_gelu() else x * (op.Erf(x * math.sqrt(0.5)) * 0.5 + 0.5)


def _fast_gelu(x: Var, bias: Var | None) -> Var:
    """The approximation by tanh, of x + bias."""
    x = plus(x, bias)
    if _has_gelu():
        return op.Gelu(x, approximate="tanh")
    return x * (op.Tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) * 0.5 + 0.5)


def _quick_gelu(x: Var, *, alpha: float = 1.702) -> Var:
    return x * op.Sigmoid(x if alpha == 1.0 else x * alpha)


body(f"{_DOMAIN}::Gelu", _gelu)
body(f"{_DOMAIN}::FastGelu", _fast_gelu)
body(f"{_DOMAIN}::QuickGelu", _quick_gelu)
body(f"{_DOMAIN}::BiasGelu", lambda a, b: _gelu(a + b))


# ---- products and convolutions with what was fused into them -------------------------------------


def _fused_matmul(
    a: Var,
    b: Var,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    binding: Binding,
) -> Var:
    y = _arranged(a, transA, transBatchA, binding) @ _arranged(b, transB, transBatchB, binding)
    return y if alpha == 1.0 else y * alpha


def _arranged(v: Var, last_two: int, batch: int, binding: Binding) -> Var:
    """The first axis moved behind the batch axes, (M, *batch, K) to (*batch, M, K); then the
    last two swapped.
    """
    if not last_two and not batch:
        return v
    if v.rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs the rank of '{v.name}', which shape "
            "inference cannot tell"
        )
    order = list(range(v.rank))
    if batch and v.rank > 2:
        order = [*order[1:-1], 0, order[-1]]
    if last_two and v.rank > 1:
        order = [*order[:-2], order[-1], order[-2]]
    return v if order == sorted(order) else op.Transpose(v, perm=order)


def _fused_gemm(
    a: Var,
    b: Var,
    c: Var | None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    binding: Binding,
) -> Var:
    y = op.Gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return _activated(y, activation, (activation_alpha, activation_beta), binding)


def _fused_conv(
    x: Var,
    w: Var,
    bias: Var | None,
    z: Var | None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    auto_pad: str | None = None,
    dilations: Sequence[int] | None = None,
    group: int | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    binding: Binding,
) -> Var:
    y = op.Conv(
        x, w, bias, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )  # fmt: skip
    return _activated(plus(y, z), activation, tuple(activation_params), binding)


# what the numbers of an activation are called in the standard operator
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "HardSwish": (), "LeakyRelu": ("alpha",),
    "Relu": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}  # fmt: skip


def _activated(y: Var, name: str, numbers: Sequence[float | None], binding: Binding) -> Var:
    if name in ("", "Identity"):
        return y
    if name == "Clip" and len(numbers) == 2:
        return op.Clip(y, *numbers)
    if name not in _ACTIVATIONS:
        raise InputError(f"no gradient of '{binding}': its activation '{name}' is not known")
    result: Var = getattr(op, name)(y, **dict(zip(_ACTIVATIONS[name], numbers)))
    return result


body(f"{_DOMAIN}::FusedMatMul", _fused_matmul)
body(f"{_DOMAIN}::TransposeMatMul", _fused_matmul)
body(f"{_DOMAIN}::FusedGemm", _fused_gemm, notes="the activation's")
body(f"{_DOMAIN}::FusedConv", _fused_conv, notes="the activation's")
