"""`merge`: adds adapters to the weights beside them, W + alpha / rank A B."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, check_room, load, load_own, program_of, proto_of, to_kind_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import keep
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.train.adapters.adapters import (
    Adapters,
    Given,
    adapters_of,
    note_of,
    read_if_path,
)
from onnxgrad.train.adapters.lora import fitting
from onnxgrad.train.adapters.targets import Site
from onnxgrad.train.export import digest, with_weights
from onnxgrad.vocabulary import ADAPTERS


@known_keywords
def merge(model: ModelLike, adapters: Given | None = None) -> Any:
    """Returns the model without adapters, in the type you passed in; its weights include them.

    model: with `adapters`, the original file; everything except the adapted weights is copied field
    for field. Without `adapters`, a model that has them beside its weights. The sums are formed in
    float64 and rounded to the weight's dtype. Raises InputError for adapters of
    another model, and for quantised weights, which cannot represent the sum.
    """
    if adapters is None:
        found, base = adapters_of(model), without_adapters(model)
        program = base
    else:
        if note_of(proto_of(model)[0]) is not None:
            raise InputError("the model has adapters beside its weights: merge these first")
        found, program, base = read_if_path(adapters), load(model), None
        check_room(program, model)
    places = fitting(program, found, found.base if base is not None else digest(model))
    values = {site.name: _merged(site, found) for site in places}
    how = {"lora": {"rank": found.rank, "alpha": found.alpha}}
    return to_kind_of(with_weights(model if base is None else base, values, how), model)


def _merged(site: Site, adapters: Adapters) -> Array:
    """Returns W + s A B, or W + s (A B)^T if inputs enter by the columns."""
    if site.quantised:
        raise InputError(
            f"'{site.name}' is quantised and cannot hold what its adapter adds: keep the adapter "
            "beside it, or merge into the model before quantisation"
        )
    a, b = adapters.factors(site.name)
    moved = adapters.scale * (a.astype(np.float64) @ b.astype(np.float64))
    held = site.weight.initializer
    array = site.weight.const if held is None else site.weight.block.program.array(held)
    if array is None:
        raise InputError(f"'{site.name}' is not a weight that the file holds as numbers")
    turned = moved if site.inputs_first else moved.T
    merged: Array = (array.astype(np.float64) + turned.reshape(array.shape)).astype(array.dtype)
    return merged


def without_adapters(model: ModelLike) -> Program:
    """Returns the model without its adapters. Raises InputError if the adapters were changed."""
    program = load_own(model)
    note = note_of(program.proto) or {}
    unread = set(_unread(program))
    added = {b.node.name: b for b in program.main.walk() if b.is_op("Add")}
    for name in note.get("added", ()):
        b = added.get(name)
        base = None if b is None else b.inputs[0]
        if b is None or base is None:
            raise InputError(
                f"the node '{name}' that adds an adapter's part is gone: merge into the original, "
                "with `adapters`"
            )
        b.block.replace(b.out, base)
        b.block.remove_unused([b])
    for v in _unread(program):
        if v not in unread:
            v.block.remove_initializer(v)
    if left := [name for name in note.get("values", ()) if name in program.main.initializers]:
        raise InputError(
            f"'{left[0]}' is read by more than its adapter, or an input: merge into the original, "
            "with `adapters`"
        )
    proto = to_proto(program)
    keep(proto.metadata_props, lambda entry: entry.key != ADAPTERS)
    return program_of(proto, program.folder, digests=program.digests)


def _unread(program: Program) -> list[Var]:
    """Returns initializers without readers."""
    return [
        v
        for block in program.blocks()
        for v in block.initializers.values()
        if not v.use_count and not v.is_input
    ]
