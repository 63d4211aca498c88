"""Low-rank adapters (LoRA): added beside weights, saved in their own files, merged into weights."""

from onnxgrad.train.adapters.adapters import Adapters, adapters_of, read_adapters, save_adapters
from onnxgrad.train.adapters.lora import load_adapters, lora
from onnxgrad.train.adapters.merge import merge
from onnxgrad.train.adapters.onnxruntime_format import save_onnxruntime, with_adapter_inputs
from onnxgrad.train.adapters.peft import read_peft, save_peft

__all__ = [
    "Adapters",
    "adapters_of",
    "load_adapters",
    "lora",
    "merge",
    "read_adapters",
    "read_peft",
    "save_adapters",
    "save_onnxruntime",
    "save_peft",
    "with_adapter_inputs",
]
