"""Opens models in onnxruntime for measurements, in the process of the script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from onnx import ModelProto


def session(
    model: ModelProto | bytes | Path,
    threads: int = 1,
    *,
    cuda: bool = False,
    tf32: bool = False,
    **settings: Any,
) -> Any:
    """Returns an InferenceSession whose threads do not spin; 0 threads are as many as onnxruntime
    chooses.

    `settings` are attributes of onnxruntime's SessionOptions. Ends the script if CUDA does not
    start.
    """
    import onnxruntime  # a benchmark may set the environment after its imports

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in settings.items():
        setattr(options, name, value)
    providers: list[Any] = ["CPUExecutionProvider"]
    if cuda:
        onnxruntime.preload_dlls()
        providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": str(int(tf32))}))
    source = model.SerializeToString() if isinstance(model, ModelProto) else model
    source = str(source) if isinstance(source, Path) else source
    made = onnxruntime.InferenceSession(source, options, providers=providers)
    if cuda and "CUDAExecutionProvider" not in made.get_providers():
        sys.exit("onnxruntime did not start CUDA: see `onnxgrad doctor`")
    return made
