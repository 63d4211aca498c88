"""The memory of a device that a run needs, from onnxruntime's own count of its arena there.

A device has no /proc, and every other process changes its free memory. onnxruntime 1.31 and newer
write the count of the arena after each node into a profile. A model of known size is counted first.
If its count lacks a weight, an input or a result, the memory is not reported.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.verify.values import Feeds

Ask = Callable[..., Any]  # (stage, verb, *arguments) -> the answer of a child process

_SIDE = 1 << 20  # elements of the weight, the input and the result of the known model
_KNOWN = 3 * 4 * _SIDE
# the arena rounds a request up, to less than twice its size
_MOST = 3 * _KNOWN
_KEY = "counted"


def peak_on_device(
    ask: Ask, payload: bytes | str, config: Mapping[str, Any], feeds: Feeds, version: str
) -> int:
    """Returns the most bytes that the weights, inputs and values of a run occupy on the device,
    without CUDA's context and libraries.

    Raises InputError if this onnxruntime does not count them.
    """
    with tempfile.TemporaryDirectory(prefix="onnxgrad-") as folder:
        counted = {**config, "profile": os.path.join(folder, "run"), "keep": 1}

        def count(model: bytes | str, fed: Feeds) -> int:
            ask("load", "open", _KEY, model, counted)
            found = ask("run", "peak", _KEY, fed, config["provider"])
            if found is None:
                raise _not_counted(version, "has no count of it (1.31 and newer do)")
            return int(found)

        known = count(_known_model(), {"x": np.ones(_SIDE, np.float32)})
        if not _KNOWN <= known <= _MOST:
            raise _not_counted(version, f"counts {known:,} bytes of a model that has {_KNOWN:,}")
        return count(payload, feeds)


def _not_counted(version: str, why: str) -> InputError:
    return InputError(
        f"memory on the device cannot be measured: onnxruntime {version} {why}; "
        "require memory in a recipe for the CPU"
    )


@functools.cache
def _known_model() -> bytes:
    """Returns a model of y = x * w, which is not folded, over float32 vectors of 4 MiB."""
    weight = numpy_helper.from_array(np.ones(_SIDE, np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [_SIDE]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())
