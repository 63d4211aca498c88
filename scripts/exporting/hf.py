"""Transformer and diffusion topologies from the transformers and diffusers libraries, in narrow
configurations.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Tensor]]


class Outputs(nn.Module):
    """Calls a library model and returns only the named outputs, so that the file's outputs are
    what the table says.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def pick(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        """The named outputs of one call."""
        result = self.model(**inputs, **self.fixed)
        return tuple(getattr(result, name) for name in self.names)


class Ids(Outputs):
    """ids only."""

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        """input_ids (batch, sequence) int64."""
        return self.pick(input_ids=input_ids)


class IdsMask(Outputs):
    """ids and a padding mask."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """input_ids and attention_mask (batch, sequence) int64."""
        return self.pick(input_ids=input_ids, attention_mask=attention_mask)


class Pixels(Outputs):
    """Images."""

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """pixel_values (batch, 3, height, width)."""
        return self.pick(pixel_values=pixel_values)


class EncoderDecoder(Outputs):
    """Text to text."""

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> tuple[Tensor, ...]:
        """input_ids (batch, source), decoder_input_ids (batch, target), int64."""
        return self.pick(input_ids=input_ids, decoder_input_ids=decoder_input_ids)


class Speech(Outputs):
    """Audio features to text."""

    def forward(self, input_features: Tensor, decoder_input_ids: Tensor) -> tuple[Tensor, ...]:
        """input_features (batch, mel, frames), decoder_input_ids (batch, target) int64."""
        return self.pick(input_features=input_features, decoder_input_ids=decoder_input_ids)


def _eager(config: Any) -> Any:
    config._attn_implementation = (
        "eager"  # the library's own switch has no public setter on a config
    )
    return config


def _ids(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(
        3, vocabulary, shape
    )  # 0..2 are special tokens (padding, begin, end) in these libraries


# how many times wider than the committed files; `export_models.py --wider` sets it
WIDER = 1


def bert() -> Built:
    """BERT-base topology: 12 layers, 12 heads; hidden 24, ff 96; the second sequence is padded."""
    config = _eager(
        hf.BertConfig(
            hidden_size=24 * WIDER,
            num_attention_heads=12,
            num_hidden_layers=12,
            intermediate_size=96 * WIDER,
            vocab_size=300,
            max_position_embeddings=128,
        )
    )
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, 17:] = 0
    model = IdsMask(hf.BertModel(config, add_pooling_layer=False), ("last_hidden_state",))
    return model, {"input_ids": _ids(300, 2, 24), "attention_mask": mask}


def bert_script() -> Built:
    """The same with 4 layers, so that the export through TorchScript stays small."""
    model, inputs = bert()
    model.model.encoder.layer = model.model.encoder.layer[:4]
    return model, inputs


def gpt2() -> Built:
    """GPT-2 topology: 12 layers, 12 heads; n_embd 24; packed QKV, tied head, no cache."""
    config = _eager(
        hf.GPT2Config(
            n_embd=24 * WIDER,
            n_head=12,
            n_layer=12,
            vocab_size=300,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    return Ids(hf.GPT2LMHeadModel(config), ("logits",), use_cache=False), {
        "input_ids": _ids(300, 2, 24)
    }


def llama() -> Built:
    """Llama topology: 12 layers, 8 heads, 2 key/value heads, gated feed-forward; hidden 32, ff
    88; no cache.
    """
    config = _eager(
        hf.LlamaConfig(
            hidden_size=32 * WIDER,
            num_attention_heads=8,
            num_key_value_heads=2,
            num_hidden_layers=12,
            intermediate_size=88 * WIDER,
            vocab_size=300,
            max_position_embeddings=64,
        )
    )
    return Ids(hf.LlamaForCausalLM(config), ("logits",), use_cache=False), {
        "input_ids": _ids(300, 1, 32)
    }


def vit() -> Built:
    """ViT-base topology: 12 layers, 12 heads, 16x16 patches; hidden 24, ff 96; 64x64 images (16
    patches).
    """
    config = _eager(
        hf.ViTConfig(
            hidden_size=24 * WIDER,
            num_attention_heads=12,
            num_hidden_layers=12,
            intermediate_size=96 * WIDER,
            image_size=64,
        )
    )
    model = Pixels(hf.ViTModel(config, add_pooling_layer=False), ("last_hidden_state",))
    return model, {"pixel_values": torch.randn(1, 3, 64, 64)}


def clip() -> Built:
    """CLIP text topology: 12 layers, 12 heads, QuickGelu, causal mask; hidden 24, ff 96."""
    config = _eager(
        hf.CLIPTextConfig(
            hidden_size=24 * WIDER,
            num_attention_heads=12,
            num_hidden_layers=12,
            intermediate_size=96 * WIDER,
            vocab_size=300,
            max_position_embeddings=77,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    ids = _ids(300, 1, 77)
    ids[0, -1] = 2
    return Ids(hf.CLIPTextModel(config), ("last_hidden_state", "pooler_output")), {"input_ids": ids}


def t5() -> Built:
    """T5-small topology: 6 + 6 layers, 8 heads, relative position bias; d_model 32, d_kv 4, d_ff
    96.
    """
    config = _eager(
        hf.T5Config(
            d_model=32 * WIDER,
            d_kv=4 * WIDER,
            d_ff=96 * WIDER,
            num_layers=6,
            num_heads=8,
            vocab_size=300,
            decoder_start_token_id=0,
        )
    )
    model = EncoderDecoder(hf.T5ForConditionalGeneration(config), ("logits",), use_cache=False)
    return model, {"input_ids": _ids(300, 1, 32), "decoder_input_ids": _ids(300, 1, 8)}


def whisper() -> Built:
    """Whisper-tiny topology: 4 + 4 layers, 6 heads, two Conv1d; d_model 24, ff 96; 100 frames of
    80 mel bands.
    """
    config = _eager(
        hf.WhisperConfig(
            d_model=24 * WIDER,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=96 * WIDER,
            decoder_ffn_dim=96 * WIDER,
            vocab_size=300,
            max_source_positions=50,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )
    model = Speech(hf.WhisperForConditionalGeneration(config), ("logits",), use_cache=False)
    return model, {"input_features": torch.randn(1, 80, 100), "decoder_input_ids": _ids(300, 1, 8)}


class Denoiser(nn.Module):
    """UNet2DConditionModel with tensors as arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """sample (n, 4, h, w), timestep (n,) int64, encoder_hidden_states (n, tokens, width) ->
        (n, 4, h, w).
        """
        result: Tensor = self.model(sample, timestep, encoder_hidden_states, return_dict=False)[0]
        return result


def unet() -> Built:
    """Stable Diffusion 1.x topology (layers_per_block 2, three cross-attention levels and one
    plain), narrow.
    """
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=2,
        block_out_channels=(8, 16, 24, 24),
        down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
        cross_attention_dim=20,
        attention_head_dim=8,
        norm_num_groups=4,
    )
    return Denoiser(model), {
        "sample": torch.randn(1, 4, 16, 16),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 12, 20),
    }
