"""The proof that an optimised model with new weights computes what the original does with them."""

from __future__ import annotations

from onnx import TensorProto

from onnxgrad.ir.load import unread
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import clear_data, copy_of
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.jobs.proving import with_bound
from onnxgrad.jobs.rebasing.constants import set_elements
from onnxgrad.jobs.rebasing.outline import initializers
from onnxgrad.jobs.rebasing.record import Record
from onnxgrad.jobs.rebasing.weights import NewWeights
from onnxgrad.jobs.surgery.declarations import RebaseOptions
from onnxgrad.verify import Report, verify


def prove(record: Record, made: Program, weights: NewWeights, options: RebaseOptions) -> Report:
    """Returns the report of the proof. Raises as `verify`."""
    proof = options.proof()
    if record.halved:
        proof = with_bound(proof)
    proof.setdefault("weights", "rounded" if record.rounded else "same")
    with sharing() as files:
        original, candidate = (files.of(p) for p in (_filled(record, weights), made))
        return verify(original, candidate, **proof)


def _filled(record: Record, weights: NewWeights) -> Program:
    """Returns the original with new values and the changes around the passes. Values in files stay
    there.
    """
    model, sources = copy_of(record.reference or record.original), dict(record.sources)
    if record.reference is None:
        sources = {name: name for name in record.initializers if name not in record.fixed}
    for name, tensor in initializers(model):
        source = sources.get(name)
        if source is not None and source in weights.outside:
            clear_data(tensor)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.extend(weights.outside[source].external_data)
        elif source is not None:
            set_elements(tensor, weights(source))
    return unread(model, weights.folder)
