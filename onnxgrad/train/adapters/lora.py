"""`lora`: adds low-rank matrices beside chosen weights; only these are then trained.

An adapter adds y + s (x A) B to the result of its weight, never x (A B): neither forward nor
backward pass forms a matrix of the weight's size. Source: Hu et al. 2021, "LoRA: Low-Rank
Adaptation of Large Language Models", with the initial values of its authors' loralib: outputs do
not change before the first step.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InputError, InternalError
from onnxgrad.grad.wrt import entries_of
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, check_room, load_own, to_kind_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, TensorType, is_static, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.options import Count, Finite, Natural, checked, known_keywords
from onnxgrad.train.adapters.adapters import (
    LORA_A,
    LORA_B,
    Adapters,
    Given,
    note_of,
    read_if_path,
    with_note,
)
from onnxgrad.train.adapters.targets import Site, Use, choose, sites
from onnxgrad.train.export import digest

# the first opset that broadcasts as NumPy does, the first IR whose initializers are no inputs
_OPSET, _IR_VERSION = 7, 4


@known_keywords
def lora(
    model: ModelLike,
    targets: str | Sequence[str],
    *,
    rank: int = 8,
    alpha: float = 16.0,
    seed: int = 0,
) -> Any:
    """Returns the model, in the type you passed in, with y + alpha / rank (x A) B for every y = x W
    of the chosen W.

    targets: names and globs of weights, of the nodes that read them, or of modules
    ("*.attention.self.query,*.value"); "!GLOB" excludes names. Possible weights: W as a factor of
    MatMul and Gemm, also behind Transpose, Cast and DequantizeLinear, as the packed weight of
    MatMulNBits, as the filter of a 1x1 Conv with group=1, and as the table of a Gather of rows. A
    weight that several nodes read has one adapter, used at each. A and B are initializers
    `<weight>.lora_A`, of shape (in, rank), and `<weight>.lora_B`, (rank, out), with the dtype of
    the product; train them with wrt="*.lora_*". A is uniform within 1 / sqrt(in), drawn by `seed`
    and the weight's name, and B is zeros (for a table, A is zeros and B normal), so that the
    outputs do not change. Raises InputError for a rank below 1 or above the smaller side of a
    weight, an entry that matches nothing or cannot be adapted, and a model that already has
    adapters.
    """
    rank = checked(Count, rank, "lora: rank")
    alpha, seed = checked(Finite, alpha, "lora: alpha"), checked(Natural, seed, "lora: seed")
    if alpha == 0:
        raise InputError("lora: alpha must not be 0")
    program = _own(model)
    chosen = choose(program, targets)
    for site in chosen:
        if rank > min(site.sides):
            raise InputError(
                f"rank {rank} is larger than the smaller side of '{site.name}', {site.inputs} to "
                f"{site.outputs}: choose at most {min(site.sides)}, or exclude it with "
                f"'!{site.name}'"
            )
    added: list[str] = []
    for site in chosen:
        a, b = _first_values(site, rank, seed)
        added += add_adapter(site, *_initializers(program, site.name, a, b), alpha / rank)
    entries = tuple(entries_of(targets, {site.name for site in chosen}))
    words = Adapters(rank, alpha, entries, digest(model)).words()
    names = [site.name + suffix for site in chosen for suffix in (LORA_A, LORA_B)]
    return to_kind_of(with_note(program, {**words, "added": added, "values": names}), model)


def add_adapter(site: Site, a: Var, b: Var, scale: float) -> list[str]:
    """Adds the adapter's part to the result of W at every reader. Returns the names of the nodes
    that add.

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
            raise InternalError(f"the adapter of '{site.name}' has no effect")
        added.append(new.definition.node.name)
    return added


def _part(site: Site, use: Use, a: Var, b: Var, scale: float) -> Var:
    """Returns s M x, in the form of the use, with M = L R: A B, or its transpose B^T A^T."""
    left, right = (a, b) if site.inputs_first != use.transposed else (b.mT, a.mT)
    x = _input(use)
    if use.kind == "right":
        return _scaled(x @ left, scale) @ right
    if use.kind == "left":
        return left @ _scaled(right @ x, scale)
    if use.kind == "rows":
        return _scaled(op.Gather(left, x), scale) @ right
    attributes = use.binding.attrs.items()
    places = {k: v for k, v in attributes if k in ("strides", "pads", "dilations", "auto_pad")}
    z = op.Conv(x, _filter(right, site), **places)
    return op.Conv(_scaled(z, scale), _filter(left, site))


def _scaled(z: Var, scale: float) -> Var:
    return z if scale == 1.0 else z * scale


def _input(use: Use) -> Var:
    """Returns the operand that is not the weight, in the form of the product."""
    b = use.binding
    x = b.inputs[use.other]
    if x is None:
        raise InternalError(f"a product without an operand: {b}")
    turned = b.op == "Gemm" and b.attr("transB" if use.other else "transA", 0)
    return op.Transpose(x, perm=[1, 0]) if turned else x


def _filter(m: Var, site: Site) -> Var:
    """Returns a matrix as a filter of size 1: (out, in) becomes (out, in, 1, ...)."""
    ones = (site.weight.rank or 0) - 2
    sizes = m.shape
    if not is_static(sizes):
        raise InternalError(f"an adapter of unknown size: {m!r}")
    return op.Reshape(m, [*sizes, *[1] * ones])


@known_keywords
def load_adapters(model: ModelLike, adapters: Given | Mapping[str, Given]) -> Any:
    """Returns the base model, in the type you passed in, with saved adapters beside its weights.

    adapters: a file of `save_adapters`, or `Adapters`. Several by name are selected at each run by
    a new int64 input `adapter`: 0 for none, 1 for the first, and so on. Raises InputError for
    adapters of another model.
    """
    program, base = _own(model), digest(model)
    if not isinstance(adapters, Mapping):
        found = read_if_path(adapters)
        added = _attach(program, found, base)
        note = {**found.words(), "added": added, "values": list(found.values)}
    else:
        several = {name: read_if_path(given) for name, given in adapters.items()}
        if not several:
            raise InputError("no adapters given to choose from")
        note = {"names": list(several), "base": base, "input": _attach_all(program, several, base)}
    return to_kind_of(with_note(program, note), model)


def _own(model: ModelLike) -> Program:
    """Returns a copy of the model. Raises InputError if it has adapters already, or is too old."""
    program = load_own(model)
    check_room(program, model)
    if note_of(program.proto) is not None:
        raise InputError("the model has adapters already: merge them, or begin with the original")
    if program.opset < _OPSET:
        raise InputError(
            f"adapters need opset {_OPSET} or newer, the model has {program.opset}: convert it "
            "with onnx.version_converter"
        )
    program.ir_version = max(program.ir_version, _IR_VERSION)
    return program


def _first_values(site: Site, rank: int, seed: int) -> tuple[Array, Array]:
    """Returns A and B as in loralib: kaiming_uniform(a=sqrt(5)), which is U(+-1 / sqrt(in)), and
    zeros; for tables zeros and N(0, 1). They do not depend on other adapters.
    """
    rng = np.random.default_rng([seed, zlib.crc32(site.name.encode())])
    a, b = np.zeros((site.inputs, rank)), np.zeros((rank, site.outputs))
    if site.is_table:
        b = rng.standard_normal(b.shape)
    else:
        bound = 1 / math.sqrt(site.inputs)
        a = rng.uniform(-bound, bound, a.shape)
    dtype = numpy_dtype(site.dtype)
    return a.astype(dtype), b.astype(dtype)


def _initializers(program: Program, weight: str, a: Array, b: Array) -> tuple[Var, Var]:
    """Returns A and B as new weights of the main graph. Raises InputError if the names are
    taken.
    """
    made = []
    for name, array in ((weight + LORA_A, a), (weight + LORA_B, b)):
        if name in program.names:
            raise InputError(f"the model has a value or node '{name}' already: rename it")
        made.append(program.main.add_initializer(numpy_helper.from_array(array, name)))
    return made[0], made[1]


# ---- saved adapters ------------------------------------------------------------------------------


def fitting(program: Program, adapters: Adapters, base: str) -> list[Site]:
    """Returns the sites of adapters in their base model. Raises InputError for another model."""
    if adapters.base != base:
        raise InputError(
            "these adapters are for another model than this one (their base has the digest "
            f"{adapters.base[:12]}, this model {base[:12]}): use the model passed to lora()"
        )
    known = {s.name: s for s in sites(program)}
    strange = [name for name in adapters.weights if name not in known or known[name].reason]
    if strange or not adapters.values:
        raise InputError(
            f"the adapters are damaged: '{strange[0] if strange else ''}' fits no weight here"
        )
    found = [known[name] for name in adapters.weights]
    for site in found:
        a, b = adapters.factors(site.name)
        if (len(a), b.shape[1]) != (site.inputs, site.outputs):
            raise InputError(
                f"the adapter of '{site.name}' is for {len(a)} to {b.shape[1]} features, not for "
                f"{site.inputs} to {site.outputs}"
            )
    return found


def _attach(program: Program, adapters: Adapters, base: str) -> list[str]:
    added: list[str] = []
    for site in fitting(program, adapters, base):
        dtype = numpy_dtype(site.dtype)
        a, b = (factor.astype(dtype) for factor in adapters.factors(site.name))
        added += add_adapter(site, *_initializers(program, site.name, a, b), adapters.scale)
    return added


def _attach_all(program: Program, several: Mapping[str, Adapters], base: str) -> str:
    """Adds stacks (k + 1, in, r) and (k + 1, r, out), of which an input selects one pair; 0 is
    zeros. Returns the name of the input.
    """
    by_name: dict[str, Site] = {}
    for adapters in several.values():
        by_name |= {site.name: site for site in fitting(program, adapters, base)}
    names = program.names
    which = program.main.add_input(names.fresh("adapter"), TensorType(TensorProto.INT64, ()))
    for site in by_name.values():
        stacks = _initializers(program, site.name, *_stacked(site, list(several.values())))
        with emitting(program.main, made_by="lora"):
            a, b = (op.Gather(stack, which) for stack in stacks)
        add_adapter(site, a, b, 1.0)
    return which.name


def _stacked(site: Site, several: Sequence[Adapters]) -> tuple[Array, Array]:
    """Returns the factors of all adapters, padded to one rank; B contains alpha / rank."""
    rank = max(adapters.rank for adapters in several)
    dtype = numpy_dtype(site.dtype)
    a = np.zeros((len(several) + 1, site.inputs, rank), dtype)
    b = np.zeros((len(several) + 1, rank, site.outputs), dtype)
    for i, adapters in enumerate(several, 1):
        if site.name in adapters.weights:
            left, right = adapters.factors(site.name)
            a[i, :, : adapters.rank] = left
            b[i, : adapters.rank] = adapters.scale * right.astype(np.float64)
    return a, b
