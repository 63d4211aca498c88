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
    """Returns the original with new values. Those in files stay there."""
    model = copy_of(record.original)
    for name, tensor in initializers(model):
        if name in weights.outside:
            clear_data(tensor)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.extend(weights.outside[name].external_data)
        elif name not in record.fixed:
            set_elements(tensor, weights(name))
    return unread(model, weights.folder)
