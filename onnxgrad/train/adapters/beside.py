"""An adapter beside what reads its weight: y + s (x A) B, the small product first.

Never x (A B): neither forward nor backward forms a matrix of the weight's size (Hu et al. 2021,
"LoRA: Low-Rank Adaptation of Large Language Models", equation 3).
"""

from __future__ import annotations

from typing import Any

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static
from onnxgrad.ir.var import Var
from onnxgrad.train.adapters.targets import Site
from onnxgrad.train.adapters.uses import Use


def beside(site: Site, a: Var, b: Var, scale: float) -> list[str]:
    """Let every reader of what W makes read that plus the adapter's part; the nodes that add.

    a: (in, r), b: (r, out), both possibly computed. scale: alpha / r.
    """
    added = []
    for use in site.uses:
        y = use.binding.out
        readers = [(user, place) for user in y.users for place in user.places(y)]
        with emitting(y.block, share=True, sources=(use.binding,), made_by="lora"):
            new = y + _part(site, use, a, b, scale * use.scale)
        if y.shape is not None:
            new.type = y.type
        for user, place in readers:
            user.block.set_operand(user, place, new)
        for block in y.blocks_returning():
            block.return_instead(y, new)
        if new.definition is None:
            raise InternalError(f"the adapter of '{site.name}' adds nothing")
        added.append(new.definition.node.name)
    return added


def _part(site: Site, use: Use, a: Var, b: Var, scale: float) -> Var:
    """s M x, or as the use has it, with M = L R: A B, or its transpose B^T A^T."""
    left, right = (a, b) if site.inputs_first != use.transposed else (b.mT, a.mT)
    x = _input(use)
    if use.kind == "right":
        return _scaled(x @ left, scale) @ right
    if use.kind == "left":
        return left @ _scaled(right @ x, scale)
    if use.kind == "rows":
        return _scaled(op.Gather(left, x), scale) @ right
    z = op.Conv(x, _filter(right, site), **_places(use.binding))
    return op.Conv(_scaled(z, scale), _filter(left, site))


def _scaled(z: Var, scale: float) -> Var:
    return z if scale == 1.0 else z * scale


def _input(use: Use) -> Var:
    """The operand that is not the weight, as the product has it."""
    b = use.binding
    x = b.inputs[use.other]
    if x is None:
        raise InternalError(f"a product without an operand: {b}")
    turned = b.op == "Gemm" and b.attr("transB" if use.other else "transA", 0)
    return op.Transpose(x, perm=[1, 0]) if turned else x


def _filter(m: Var, site: Site) -> Var:
    """A matrix as a filter of size 1: (out, in) to (out, in, 1, ...)."""
    ones = (site.weight.rank or 0) - 2
    sizes = m.shape
    if not is_static(sizes):
        raise InternalError(f"an adapter of unknown size: {m!r}")
    return op.Reshape(m, [*sizes, *[1] * ones])


def _places(conv: Binding) -> dict[str, Any]:
    """The attributes that say where the filter is put."""
    return {
        name: value
        for name, value in conv.attrs.items()
        if name in ("strides", "pads", "dilations", "auto_pad")
    }
