"""What must hold before we look at a model at all; onnx.checker accepts much of this and refuses legal models."""

from __future__ import annotations

import onnx
from onnx import ModelProto

from onnxgrad.errors import InputError


def check_model(proto: ModelProto, where: str) -> None:
    """Raises InputError for a file that is no ONNX model or that names versions this onnx does not know."""
    if not proto.HasField("graph") or not proto.ir_version:
        raise InputError(f"{where}: not an ONNX model (no graph or no IR version in it)")
    if not proto.opset_import:
        raise InputError(f"{where}: the model imports no operator set, so its operators have no meaning")
    if proto.ir_version > onnx.IR_VERSION:
        raise InputError(
            f"{where}: IR version {proto.ir_version} is newer than the installed onnx {onnx.__version__} knows "
            f"({onnx.IR_VERSION}): upgrade onnx"
        )
    newest = onnx.defs.onnx_opset_version()
    imports = [*proto.opset_import, *(o for f in proto.functions for o in f.opset_import)]
    for entry in imports:
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= newest:
            raise InputError(
                f"{where}: unknown opset {entry.version} of the default domain; the installed onnx "
                f"{onnx.__version__} knows 1 to {newest}"
            )
