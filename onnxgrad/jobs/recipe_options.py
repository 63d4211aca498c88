"""The options of a recipe as what they mean: a pipeline, and the arguments of a proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.passes.inline import Inline
from onnxgrad.passes.instruments import leave_out
from onnxgrad.passes.pipeline import Pipeline

_OF_PROOF = (
    "provider", "dims", "seeds", "legs", "threads", "inputs", "allow_empty", "atol", "rtol",
    "metric", "coverage",
)  # fmt: skip


def pipeline_of(options: Mapping[str, Any], inline: Sequence[str] = ()) -> Pipeline:
    """What runs; first, where calls of the functions `inline` stand, their bodies. Raises
    InputError for a pass or a preset that is not there.
    """
    made = Pipeline.of(
        options.get("preset", "default"),
        options.get("passes"),
        merge=options.get("merge", "auto"),
        provider=options.get("verify.provider", "cpu"),
        target_opset=options.get("target_opset"),
        for_=options.get("for"),
    )
    if inline:
        made = Pipeline((Inline(names=" ".join(inline)), *made.passes))
    return leave_out(made, options.get("without", ()))


def proof_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `verify.verify`."""
    return {k: options[f"verify.{k}"] for k in _OF_PROOF if f"verify.{k}" in options}
