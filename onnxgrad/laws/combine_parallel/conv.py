"""Parallel Convs into one (Relay's CombineParallelConv2D; here 1-D and 3-D as well)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.combine_parallel.merging import INT8, concat, is_int8, known_size, split
from onnxgrad.rewrite.combine import Family, Shared, combine
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Decline, decline, decline_if
from onnxgrad.rewrite.worklist import count

x, w, c = capture("x w c")


@frozen
class Window:
    """The window of a Conv, with its attributes in one normal form. `auto`: SAME_UPPER, SAME_LOWER,
    or explicit pads.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto: str
    group: int

    def attributes(self) -> dict[str, Any]:
        """The window as attributes of a Conv."""
        padding: dict[str, Any] = {"auto_pad": self.auto} if self.auto else {"pads": self.pads}
        sliding = {
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
        }
        return {**sliding, "group": self.group, **padding}


def window(root: Binding) -> Window | None:
    """Reads the window of a Conv; None if the kernel's size is unknown or contradicts
    `kernel_shape`.
    """
    weights = root.operand(1)
    shape = None if weights is None else weights.shape
    if shape is None or len(shape) < 3:
        return None
    kernel = tuple(d for d in shape[2:] if isinstance(d, int))
    n = len(shape) - 2
    if len(kernel) < n or tuple(root.attr("kernel_shape", kernel)) != kernel:
        return None
    strides, dilations = (
        tuple(root.attr("strides", (1,) * n)),
        tuple(root.attr("dilations", (1,) * n)),
    )
    auto, pads = root.attr("auto_pad", "NOTSET"), tuple(root.attr("pads", (0,) * (2 * n)))
    if auto == "VALID":
        auto, pads = "NOTSET", (0,) * (2 * n)
    elif auto != "NOTSET" and set(strides) == {1}:
        # at stride 1 the padding of "same" does not depend on the input's size
        whole = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        less, more = tuple(t // 2 for t in whole), tuple(t - t // 2 for t in whole)
        pads = (*less, *more) if auto == "SAME_UPPER" else (*more, *less)
        auto = "NOTSET"
    elif auto != "NOTSET":
        pads = ()
    return Window(
        kernel, strides, dilations, pads, "" if auto == "NOTSET" else auto, root.attr("group")
    )


def _shares_input(x: Var, w: Var, root: Binding) -> Hashable | Decline | None:
    """The key of a Conv: branches with equal keys may be combined. They share the input, dtype,
    window and groups, and may differ in the number of output channels. May decline.
    """
    if root.is_op("ConvTranspose"):
        parallel = [b for b in x.users if b.is_op("ConvTranspose") and b.inputs[0] is x]
        return decline("parallel ConvTransposes are not merged") if len(parallel) > 1 else None
    decline_if(root.has_refs, "an attribute is that of the enclosing function")
    decline_if(is_int8(root), INT8)
    slides = window(root)
    if slides is None or not w.dtype or w.shape is None:
        return decline("the kernel's size is unknown")
    bias = root.operand(2)
    if bias is not None and bias.rank != 1:
        return decline("the bias's rank is unknown")
    if slides.group > 1 and not isinstance(w.shape[0], int):
        return decline("a grouped weight's number of output channels is unknown")
    return (x, w.dtype, w.shape[1], slides)


# Output channels of a branch up to which merging pays on onnxruntime's CPU provider, for 1x1 and
# for larger kernels. Three branches after a Conv and Relu, 32 or 128 input channels, 14x14 or
# 56x56, time merged / separate: 1x1 kernels 0.66-0.90 up to 8 channels, 0.89-1.08 at 16, 0.96-1.45
# at 32; 3x3 kernels 0.39-0.61, 0.67-0.80, 0.93-1.19.
NARROW_POINT, NARROW = 8, 16


def reason_to_stay_apart(
    merge: str, weights: Sequence[Var], convs: Sequence[Binding], slides: Window
) -> str | None:
    """Why these Convs should not be merged; None if they should.

    The rule for `auto` comes from measurements on onnxruntime's CPU provider. Merging narrow
    branches pays, because each wastes most of a vector register. Wide branches already run in a
    blocked layout, which the Split of a merged Conv breaks. Conv + Add + Relu is one kernel only
    without a Split in between.
    """
    if merge == "never":
        return "merging is switched off"
    if merge == "always":
        return None
    if slides.group > 1:
        return "grouped outputs would have to be gathered into their order"
    if not all(v.is_constant and v.use_count == 1 for v in weights):
        return "a weight is not constant or has another reader"
    limit = NARROW if max(slides.kernel) > 1 else NARROW_POINT
    if any(v.const is None or len(v.const) > limit for v in weights):
        return (
            f"a branch has more than {limit} output channels: on CPU the Split costs more than "
            "merging saves"
        )
    if any(user.op in ("Add", "Sum") for b in convs for user in b.out.users):
        return "onnxruntime fuses the Conv of a branch with the Add after it"
    return None


def _biases(biases: Sequence[Var | None], sizes: Sequence[Dim], dtype: int) -> list[Var] | None:
    """One bias per branch, or an empty list if no branch has one; None if the length of a missing
    bias is unknown.
    """
    if all(b is None for b in biases):
        return []
    found = []
    for bias, n in zip(biases, sizes, strict=True):
        if bias is not None:
            found.append(bias)
        elif isinstance(n, int):
            # y + (-0.0) is y for every y, -0.0 included
            found.append(constant(np.full(n, -0.0, numpy_dtype(dtype)), name="no_bias"))
        else:
            return None
    return found


def _concat(values: Sequence[Var], sizes: Sequence[Dim], groups: int) -> Var:
    return concat(values, axis=0)


def _concat_groups(values: Sequence[Var], sizes: Sequence[Dim], groups: int) -> Var:
    """Concatenates group by group along axis 0: group g of every branch, then group g + 1 of every
    branch.
    """
    rest = list((values[0].shape or ())[1:])
    per_group: list[Any] = [[groups, n // groups, *rest] for n in sizes if isinstance(n, int)]
    total: Any = [sum(n for n in sizes if isinstance(n, int)), *rest]
    arrays = [v.const for v in values]
    known = [a.reshape(shape) for a, shape in zip(arrays, per_group, strict=True) if a is not None]
    if len(known) == len(values):
        return constant(
            np.concatenate(known, axis=1).reshape(total), name=f"{values[0].name}_merged"
        )
    parts = [op.Reshape(v, shape) for v, shape in zip(values, per_group, strict=True)]
    return op.Reshape(op.Concat(*parts, axis=1), total)


def _gathered(y: Var, sizes: Sequence[int], groups: int) -> tuple[Var, ...]:
    """Gathers the channels of each branch from `y`. Its channels are ordered by group, and within a
    group by branch.
    """
    per_group = [n // groups for n in sizes]
    row = sum(per_group)
    starts = [0, *accumulate(per_group)]
    parts = []
    for start, n in zip(starts, per_group):
        index = [g * row + start + j for g in range(groups) for j in range(n)]
        parts.append(op.Gather(y, np.array(index, np.int64), axis=1))
    return tuple(parts)


@cache
def convs_of_one_input(merge: str) -> Family:
    """Conv(x, w1, c1), Conv(x, w2, c2), ... = split(Conv(x, concat(w1, w2, ...), concat(c1, c2,
    ...)))
    """

    @combine(
        P.any_of("Conv", "ConvTranspose")(x.shared, w, c.maybe),
        by=_shares_input,
        shrinks=count("Conv"),
        shared=Shared("x", "their dtypes, kernels, strides, dilations, pads or groups differ"),
    )
    def combine_parallel_conv(
        x: list[Var], w: list[Var], c: list[Var | None], roots: list[Binding]
    ) -> Any:
        slides = window(roots[0])
        if slides is None:
            return decline("the kernel's size is unknown")
        reason = reason_to_stay_apart(merge, w, roots, slides)
        if reason is not None:
            return decline(reason)
        sizes = [known_size(v, 0) for v in w]
        biases = _biases(c, sizes, w[0].dtype)
        if biases is None:
            return decline("a branch without bias has an unknown number of output channels")
        together = _concat if slides.group == 1 else _concat_groups
        merged = together(biases, sizes, slides.group) if biases else None
        y = op.Conv(x[0], together(w, sizes, slides.group), merged, **slides.attributes())
        if slides.group == 1:
            return split(y, sizes, w, source_axis=0, axis=1)
        return _gathered(y, [n for n in sizes if isinstance(n, int)], slides.group)

    return combine_parallel_conv
