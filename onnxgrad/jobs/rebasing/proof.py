"""The proof that an optimised model with new weights computes what the original does with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.load import program_of, unread
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import clear_data, copy_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.ir.types import FLOAT_DTYPES, numpy_dtype
from onnxgrad.jobs.proving import proved, with_bound
from onnxgrad.jobs.rebasing.constants import set_elements
from onnxgrad.jobs.rebasing.outline import initializers
from onnxgrad.jobs.rebasing.record import Record
from onnxgrad.jobs.rebasing.weights import NewWeights, is_outside
from onnxgrad.jobs.surgery.declarations import RebaseOptions
from onnxgrad.jobs.surgery.lift import in_parts
from onnxgrad.verify import Report, verify


def prove(
    record: Record, made: Program, prepare: Program | None, weights: NewWeights,
    options: RebaseOptions,
) -> Report:  # fmt: skip
    """Returns the report of the proof of a model, or of a preparation and the rest. Raises as
    `verify`.
    """
    proof = options.proof()
    if record.halved:
        proof = with_bound(proof)
    proof.setdefault("weights", "rounded" if record.rounded else "same")
    original = _filled(record, weights)
    if prepare is not None:
        return _prove_parts(original, prepare, made, proof, options)
    with sharing() as files:
        return verify(files.of(original), files.of(made), **proof)


def _prove_parts(
    original: Program, prepare: Program, rest: Program, proof: Mapping[str, Any],
    options: RebaseOptions,
) -> Report:  # fmt: skip
    """Compares the original with a preparation and then the rest, some of whose inputs and outputs
    may have become float16.
    """
    whole, first, second = (
        program_of(to_proto(p), p.folder, None, p.digests) for p in (original, prepare, rest)
    )
    taken = {v.name: v.dtype for part in (first, second) for v in part.main.inputs}
    returned = {v.name: v.dtype for v in whole.main.outputs}
    held = {n: v.initializer for n, v in whole.main.initializers.items() if n in taken}
    values = {n: whole.array(tensor) for n, tensor in held.items() if tensor is not None}
    bounds = {name: proof[name] for name in ("weights", "metric") if name in proof}
    with sharing() as files:
        run = in_parts(first, second, _cast(values, taken), options, files)
        return proved(
            whole, lambda feeds: _cast(run(_cast(feeds, taken)), returned), options, files, **bounds
        )


def _cast(values: Mapping[str, Any], dtypes: Mapping[str, int]) -> dict[str, Any]:
    """Returns values whose float arrays have these dtypes."""
    return {
        name: value.astype(numpy_dtype(dtypes[name]), copy=False)
        if isinstance(value, np.ndarray) and dtypes.get(name) in FLOAT_DTYPES
        else value
        for name, value in values.items()
    }


def _filled(record: Record, weights: NewWeights) -> Program:
    """Returns the original with new values and the changes around the passes. Values in files stay
    there.
    """
    model, sources = copy_of(record.reference or record.original), dict(record.sources)
    if record.reference is None:
        sources = {name: name for name in record.initializers if name not in record.fixed}
    for name, tensor in initializers(model):
        source = sources.get(name)
        given = None if source is None else weights.tensors.get(source)
        if given is not None and is_outside(given):
            clear_data(tensor)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.extend(given.external_data)
        elif source is not None:
            set_elements(tensor, weights(source))
    return unread(model, weights.folder)
