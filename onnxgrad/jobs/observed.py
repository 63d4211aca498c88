"""Which values of a model are large when it runs: what float16 cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load, load_own
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from onnxgrad.options import providers_of
from onnxgrad.verify import RunFailed, run
from onnxgrad.verify.feeds.proof_cases import choose_cases

# Less and Where, in the forms that take float32
_OLDEST = 9


def values_beyond(
    model: ModelLike, least: float, most: float, proof: Mapping[str, Any]
) -> list[str]:
    """The float32 values of the main graph that have an element of a size above `least` and below
    `most` on the inputs of a proof with these options of `verify`.

    None are found where the model does not run so: the proof says why.
    """
    program = load_own(to_proto(load(model), weights=True))
    block = program.main
    values = [v for b in block.bindings for v in b.outputs if v is not None and _is_float(v)]
    if program.opset < _OLDEST or not values:
        return []
    asked = {}
    with emitting(block):
        for v in values:
            size = op.Abs(v)
            near = op.Where(op.Less(size, np.float32(most)), size, np.float32(0))
            asked[v.name] = op.ReduceMax(near, keepdims=0)
    names = {name: v.name for name, v in asked.items()}
    for v in asked.values():
        block.add_output(v)
    return _large(to_proto(load(model), weights=True), to_proto(program), names, least, proof)


def _large(
    model: Any, asking: Any, names: Mapping[str, str], least: float, proof: Mapping[str, Any]
) -> list[str]:
    provider = providers_of(proof.get("provider") or "cpu")[0]
    try:
        cases = choose_cases(
            model, proof.get("inputs"), proof.get("dims"), proof.get("seeds", (0, 1)),
            lambda feeds: run(model, feeds, provider=provider, optimize=False),
        )  # fmt: skip
        found = [
            run(asking, case.feeds, provider=provider, optimize=False, outputs=[*names.values()])
            for case in cases
        ]
    except (RunFailed, InputError):
        return []
    return [
        name for name, at in names.items() if any(float(np.asarray(r[at])) > least for r in found)
    ]


def _is_float(v: Var) -> bool:
    return v.dtype == TensorProto.FLOAT
