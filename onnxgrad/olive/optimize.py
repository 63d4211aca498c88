"""The pass of Olive that runs `onnxgrad.optimize`: what is not proved fails the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam
from pydantic import model_validator

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import save
from onnxgrad.ir.storage.external_data import outside
from onnxgrad.report.optimize import optimize
from onnxgrad.vocabulary import PROVIDERS
from onnxgrad.wording import did_you_mean

# by their names in Python: what they may be in JSON, what they say
OPTIONS: dict[str, tuple[Any, str]] = {
    "preset": (str, "The list of passes to run: `onnxgrad passes` shows them."),
    "passes": (str | list[str], "Passes in place of a preset: 'a,b{option=value}'."),
    "without": (list[str], "Passes to leave out."),
    "merge": (str, "Parallel products are merged always, auto or never."),
    "allow_growth": (bool, "With merge=always the file may grow by more than a tenth."),
    "inline": (list[str], "Local functions whose calls are opened first."),
    "target_opset": (int, "The opset of the result, whose operators may be used."),
    "for": (str, "'onnxruntime': that runtime's own operators may be used."),
    "fix_dims": (dict[str, int], "Sizes of symbolic dimensions for which alone it is written."),
    "max_rewrites": (int, "Stop after so many rewrites."),
    "recipe": (str, "A TOML file of options and requirements."),
    "tune": (bool | float | str, "Measure which rewrites pay; or a file of such decisions."),
    "verify": (bool | str, "Whether the result is proved: true (default), each, false."),
    "inputs": (str | list[str], "Files of inputs (.npz, .npy, .pb) for the proof."),
    "dims": (dict[str, int], "Sizes of symbolic dimensions for the proof."),
    "seeds": (list[int], "Of the values generated for the proof."),
    "legs": (list[str], "Of the proof: float64, onnxruntime."),
    "threads": (int, "Of onnxruntime in the proof."),
    "allow_empty": (list[str], "Outputs that may have nothing finite to compare."),
    "atol": (float | dict[str, float], "A bound in place of the proof's own tolerance."),
    "rtol": (float | dict[str, float], "The same, of each element's size."),
    "metric": (str | list[str], "A bound such as 'cosine=0.999', 'psnr=40', 'top1=0.99'."),
    "coverage": (str | float, "Least share of what decides that its runs reach: '>= 95%'."),
    "timeout": (float, "Seconds for everything."),
    "max_memory": (int | str, "For each process that runs a model: bytes, or '4GB'."),
}


class OnnxgradOptimize(Pass):  # type: ignore[misc]  # Olive ships no types
    """Rewrites an ONNX model by laws and proves the result, as `onnxgrad optimize` does.

    The proof runs on the workflow's execution provider where onnxgrad knows it (CPU, CUDA), else on
    CPU. A rewrite that is refuted, a result that is not proved and a bad option end the workflow
    with one line: ValueError, since Olive logs most other errors and goes on without a model.
    """

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:
        """False: rewrites and proof depend on the provider."""
        return False

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            name: PassConfigParam(type_=type_, default_value=None, description=text)
            for name, (type_, text) in OPTIONS.items()
        }

    @classmethod
    def _validators(cls) -> dict[str, Any]:
        return {"known": model_validator(mode="before")(_known)}

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        source = Path(model.model_path)
        target = Path(resolve_onnx_path(output_model_path, source.name))
        said = {name: getattr(config, name) for name in OPTIONS}
        said["for_"] = said.pop("for")
        by_olives_name = {theirs: ours for ours, theirs in PROVIDERS.items()}
        said["provider"] = by_olives_name.get(self.accelerator_spec.execution_provider, "cpu")
        said = {name: value for name, value in said.items() if value is not None}
        try:
            save(optimize(load(source), **said), target)
        except OnnxgradError as error:
            raise ValueError(f"{source}: {error}") from error
        if outside(onnx.load(target, load_external_data=False)):
            return ONNXModelHandler(model_path=target.parent, onnx_file_name=target.name)
        return ONNXModelHandler(model_path=target)


def _known(options: Any) -> Any:
    """Olive leaves out options that it does not know, without a word."""
    for name in options:
        if name not in OPTIONS:
            near = did_you_mean(name, OPTIONS, f"there are {', '.join(OPTIONS)}")
            raise ValueError(f"OnnxgradOptimize has no option '{name}': {near}")
    return options
