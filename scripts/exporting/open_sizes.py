"""Ten transformers whose batch and length stay open, exported through TorchScript: two layers each,
hidden 256, or of the sizes that a caller asks for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers as hf
from torch import Tensor, nn

from exporting.common import VOCABULARY, Size, Spec, flat, numpy_of, randomise, to_onnx_by_script
from exporting.hf import EncoderDecoder, IdsMask, Outputs

# of the sample that is traced, and of those whose results PyTorch gives; (batch, length)
CHECKED = ((2, 6), (1, 5), (3, 9))
MEASURED = ((1, 128), (8, 128))
OPSET = 17


_VISION = {"image_size": 64, "patch_size": 8}
_BATCH_LENGTH = {0: "batch", 1: "length"}


@dataclass(frozen=True)
class Network:
    """How to build it, its inputs for a batch and a length, and their open axes."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], dict[str, Tensor]]
    open: Mapping[str, Mapping[int, str]]


class TextAndPixels(Outputs):
    """Two towers."""

    def forward(
        self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, ...]:
        """input_ids, attention_mask (texts, length) int64, pixel_values (images, 3, h, w)."""
        return self.pick(
            input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask
        )


class Denoiser(nn.Module):
    """SD3Transformer2DModel with tensors as arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, context: Tensor, pooled: Tensor, time: Tensor) -> Tensor:
        """x (n, 4, h, w), context (n, length, width), pooled (n, width), time (n,)."""
        result: Tensor = self.model(x, context, pooled, time, return_dict=False)[0]
        return result


def _ids(batch: int, length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def _text(batch: int, length: int, *, left: bool = False) -> dict[str, Tensor]:
    """Ids and a mask that hides half of the last row: its end, or its beginning."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return {
        "input_ids": _ids(batch, length),
        "attention_mask": mask.flip(1) if left else mask,
    }


def _left_padded(batch: int, length: int) -> dict[str, Tensor]:
    return _text(batch, length, left=True)


def _two_towers(batch: int, length: int) -> dict[str, Tensor]:
    ids, mask = _text(batch, length).values()
    return {
        "input_ids": ids, "pixel_values": torch.randn(batch, 3, 64, 64), "attention_mask": mask
    }  # fmt: skip


def _two_texts(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": _ids(batch, length), "decoder_input_ids": _ids(batch, length)}


def _latents(width: int, batch: int, length: int) -> dict[str, Tensor]:
    return {
        "x": torch.randn(batch, 4, 32, 32),
        "context": torch.randn(batch, length, width),
        "pooled": torch.randn(batch, width),
        "time": torch.full((batch,), 7.0),
    }


def _hf(
    name: str,
    head: str,
    attention: str = "sdpa",
    inputs: Callable[[int, int], dict[str, Tensor]] = _text,
    wrapper: type[Outputs] = IdsMask,
    outputs: tuple[str, ...] = ("logits",),
    fixed: Mapping[str, Any] | None = None,
    **config: Any,
) -> Network:
    """A model of the transformers library, by the names of its classes."""

    def build() -> nn.Module:
        options = getattr(hf, f"{name}Config")(**config)
        options._attn_implementation = attention  # the library's switch has no public setter
        return wrapper(getattr(hf, name + head)(options), outputs, **(fixed or {}))

    axes = dict.fromkeys(inputs(1, 2), _BATCH_LENGTH)
    if "pixel_values" in axes:
        axes = {**axes, "pixel_values": {0: "images"}}
    return Network(build, inputs, axes)


def _decoder(name: str, size: Size, **more: Any) -> Network:
    return _hf(
        name, "ForCausalLM", inputs=_left_padded, fixed={"use_cache": False},
        **{**size.named, "num_key_value_heads": 2, **more},
    )  # fmt: skip


def _sd3(size: Size) -> nn.Module:
    from diffusers import SD3Transformer2DModel

    return Denoiser(
        SD3Transformer2DModel(
            sample_size=32, patch_size=2, in_channels=4, num_layers=size.layers,
            attention_head_dim=size.width // size.heads, num_attention_heads=size.heads,
            joint_attention_dim=size.width, caption_projection_dim=size.width,
            pooled_projection_dim=size.width, out_channels=4, pos_embed_max_size=32,
        )
    )  # fmt: skip


_LAST = ("last_hidden_state",)


def networks(size: Size | None = None) -> dict[str, Network]:
    """The ten by name."""
    size = size or Size()
    width, heads, layers = size.width, size.heads, size.layers
    return {
        "bert_eager": _hf("Bert", "Model", "eager", outputs=_LAST, **size.named),
        "bert_sdpa": _hf("Bert", "Model", outputs=_LAST, **size.named),
        "roberta": _hf("Roberta", "ForSequenceClassification", **size.named),
        "llama": _decoder("Llama", size),
        "mistral": _decoder("Mistral", size, sliding_window=4),
        "qwen3": _decoder("Qwen3", size, head_dim=width // heads),
        "gpt2": _hf(
            "GPT2", "LMHeadModel", "eager", _left_padded, fixed={"use_cache": False},
            n_embd=width, n_layer=layers, n_head=heads, vocab_size=VOCABULARY,
            n_positions=size.rows,
        ),
        "clip": _hf(
            "CLIP", "Model", inputs=_two_towers, wrapper=TextAndPixels,
            outputs=("logits_per_image",), text_config={**size.named, "eos_token_id": 2},
            vision_config={**size.named, **_VISION}, projection_dim=width // 2,
        ),
        "t5": _hf(
            "T5", "ForConditionalGeneration", "eager", _two_texts, EncoderDecoder,
            fixed={"use_cache": False}, d_model=width, d_kv=width // heads, d_ff=4 * width,
            num_layers=layers, num_heads=heads, vocab_size=VOCABULARY, decoder_start_token_id=0,
        ),
        "sd3": Network(
            lambda: _sd3(size),
            functools.partial(_latents, width),
            {
                "x": {0: "batch"}, "context": _BATCH_LENGTH, "pooled": {0: "batch"},
                "time": {0: "batch"},
            },
        ),
    }  # fmt: skip


def export_open(name: str, folder: Path) -> Path:
    """Writes NAME.onnx and NAME.npz: inputs at each size, with PyTorch's results at `CHECKED`."""
    torch.manual_seed(1)
    network = networks()[name]
    module = network.build().eval()
    randomise(module)
    arrays: dict[str, np.ndarray] = {}
    for batch, length in (*CHECKED, *MEASURED):
        inputs = network.inputs(batch, length)
        found = {f"in:{key}": value for key, value in inputs.items()}
        if (batch, length) in CHECKED:
            with torch.no_grad():
                results = flat(module(*inputs.values()))
            found |= {f"out:{i}": value for i, value in enumerate(results)}
        arrays |= {f"{batch}x{length}:{key}": numpy_of(value) for key, value in found.items()}
    spec = Spec(name, lambda: None, name, ("y",), dynamic=network.open)  # type: ignore[arg-type,return-value]
    proto = to_onnx_by_script(spec, module, network.inputs(*CHECKED[0]), fold=True)
    target = folder / f"{name}.onnx"
    onnx.save(proto, target)
    np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    return target
