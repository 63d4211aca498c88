"""The pass of Olive that runs `onnxgrad.optimize`. A result that is not proved fails the
workflow.
"""

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
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import config_of, json_type
from onnxgrad.jobs.optimize import optimize
from onnxgrad.vocabulary import PROVIDERS
from onnxgrad.wording import did_you_mean

OPTIONS = config_of(OptimizeOptions)


class OnnxgradOptimize(Pass):  # type: ignore[misc]  # Olive ships no types
    """Rewrites an ONNX model by laws and proves the result, as `onnxgrad optimize` does.

    The proof runs on the workflow's execution provider if onnxgrad knows it (CPU, CUDA), else on
    CPU. A refuted rewrite, a result that is not proved and an invalid option end the workflow with
    one line. They raise ValueError, because Olive logs most other errors and continues without a
    model.
    """

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:
        """Returns False: rewrites and proof depend on the provider."""
        return False

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            name: PassConfigParam(type_=json_type(o.kind), default_value=None, description=o.help)
            for name, o in OPTIONS.items()
        }

    @classmethod
    def _validators(cls) -> dict[str, Any]:
        return {"known": model_validator(mode="before")(_known)}

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        source = Path(model.model_path)
        target = Path(resolve_onnx_path(output_model_path, source.name))
        given = {o.name: getattr(config, name) for name, o in OPTIONS.items()}
        by_olives_name = {theirs: ours for ours, theirs in PROVIDERS.items()}
        given["provider"] = by_olives_name.get(self.accelerator_spec.execution_provider, "cpu")
        try:
            options = OptimizeOptions.from_settings(
                {k: v for k, v in given.items() if v is not None}
            )
            save(optimize(load(source), options).program, target)
        except OnnxgradError as error:
            raise ValueError(f"{source}: {error}") from error
        if outside(onnx.load(target, load_external_data=False)):
            return ONNXModelHandler(model_path=target.parent, onnx_file_name=target.name)
        return ONNXModelHandler(model_path=target)


def _known(options: Any) -> Any:
    """Returns the options. Raises ValueError for an unknown one, which Olive would silently
    drop.
    """
    for name in options:
        if name not in OPTIONS:
            near = did_you_mean(name, OPTIONS, f"there are {', '.join(OPTIONS)}")
            raise ValueError(f"OnnxgradOptimize has no option '{name}': {near}")
    return options
