"""`convert_opset` as Python has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.ir.load import ModelLike
from onnxgrad.options import known_keywords
from onnxgrad.passes.convert_opset import ConvertOpset
from onnxgrad.report.optimize import optimize
from onnxgrad.verify.bounds import PerOutput
from onnxgrad.verify.feeds.proof_cases import Inputs


@known_keywords
def convert_opset(
    model: ModelLike,
    to: int,
    *,
    verify: bool = True,
    provider: str = "cpu",
    inputs: Inputs | None = None,
    dims: Mapping[str, int] | None = None,
    atol: PerOutput = None,
    rtol: PerOutput = None,
    metric: str | Sequence[str] | None = None,
    report: bool = False,
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> Any:
    """The model at opset `to` of the default domain (7 to 28), in the kind that was given; other
    options as those of `optimize`, whose report it gives with `report=True`.

    Local functions, nested graphs, names, metadata and external data stay; a node is written anew
    only where its operator changed in between. To an older opset only what means the same there.
    Raises InputError, in one line, for an operator that cannot be what it was, and what `optimize`
    raises where the proof fails.

    >>> onnxgrad.convert_opset("models/lstmcell.onnx", 23).opset_import[0].version
    23
    """
    return optimize(
        model,
        passes=[ConvertOpset(to=to)],
        verify=verify,
        provider=provider,
        inputs=inputs,
        dims=dims,
        atol=atol,
        rtol=rtol,
        metric=metric,
        report=report,
        timeout=timeout,
        max_memory=max_memory,
    )
