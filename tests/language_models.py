"""Small language models as onnxruntime-genai writes them, with random weights: forms of Llama, Qwen and Phi, with
quantised products. No file declares the types of intermediate values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Architecture = Literal["llama", "qwen", "phi"]
# MatMulNBits; DequantizeLinear of int8 by columns, of int4 in blocks
Weights = Literal["packed", "int8", "int4"]
ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen", "phi")
WEIGHTS: tuple[Weights, ...] = ("packed", "int8", "int4")
_MS = "com.microsoft"


@dataclass
class LanguageModel:
    """`matrices` are the dequantised weights (inputs, outputs), `vectors` the other float initializers."""

    architecture: Architecture
    weights: Weights
    hidden: int = 64
    layers: int = 2
    width: int = 96
    vocabulary: int = 48
    heads: int = 4
    kv_heads: int = 2
    block: int = 16
    matrices: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    vectors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._stored: list[onnx.TensorProto] = []
        self.size = self.hidden // self.heads
        if self.architecture == "phi":
            self.kv_heads = self.heads

    @property
    def rotated(self) -> int:
        """How many numbers of a head are rotated: Phi rotates half of them."""
        return self.size // 2 if self.architecture == "phi" else self.size

    def _node(
        self, op: str, inputs: list[str], outputs: list[str], domain: str = "", **attrs: Any
    ) -> str:
        name = f"/{outputs[0]}/{op}"
        self._nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=domain, **attrs))
        return outputs[0]

    def _store(self, name: str, value: np.ndarray[Any, Any]) -> str:
        self._stored.append(numpy_helper.from_array(value, name))
        return name

    def _vector(self, name: str, spread: float, *shape: int, mean: float = 0.0) -> str:
        value = mean + spread * self._rng.standard_normal(shape)
        self.vectors[name] = value.astype(np.float32)
        return self._store(name, self.vectors[name])

    def _product(self, x: str, module: str, k: int, n: int, bias: bool = False) -> str:
        """x @ W with quantised W, plus a bias."""
        y = module + ".out"
        product = y + "_product" if bias else y
        of = {"packed": self._packed, "int8": self._int8, "int4": self._int4}[self.weights]
        of(x, module, k, n, product)
        return (
            self._node("Add", [product, self._vector(module + ".bias", 0.05, n)], [y])
            if bias
            else y
        )

    def _packed(self, x: str, module: str, k: int, n: int, y: str) -> None:
        blocks = k // self.block
        q = self._rng.integers(0, 16, (n, blocks, self.block), dtype=np.uint8)
        scales = (self._rng.uniform(0.5, 1.5, (n, blocks)) / 8 / k**0.5).astype(np.float32)
        self.matrices[module] = ((q.astype(np.float32) - 8) * scales[..., None]).reshape(n, k).T
        names = [
            self._store(module + ".qweight", q[..., ::2] | q[..., 1::2] << 4),
            self._store(module + ".scales", scales),
        ]
        sizes = {"K": k, "N": n, "bits": 4, "block_size": self.block, "accuracy_level": 0}
        self._node("MatMulNBits", [x, *names], [y], _MS, **sizes)

    def _int8(self, x: str, module: str, k: int, n: int, y: str) -> None:
        q = self._rng.integers(-127, 128, (k, n)).astype(np.int8)
        scale = (self._rng.uniform(0.5, 1.5, n) / 127 / k**0.5).astype(np.float32)
        self._dequantised(x, module, q, scale, y, axis=1)
        self.matrices[module] = q * scale

    def _int4(self, x: str, module: str, k: int, n: int, y: str) -> None:
        q = self._rng.integers(-8, 8, (k, n))
        scale = (self._rng.uniform(0.5, 1.5, (k // self.block, n)) / 8 / k**0.5).astype(np.float32)
        self._dequantised(
            x, module, q.astype(ml_dtypes.int4), scale, y, axis=0, block_size=self.block
        )
        self.matrices[module] = (q * np.repeat(scale, self.block, 0)).astype(np.float32)

    def _dequantised(self, x: str, module: str, q: Any, scale: Any, y: str, **attrs: int) -> None:
        names = [self._store(module + ".weight", q), self._store(module + ".scale", scale)]
        w = self._node("DequantizeLinear", names, [module + ".dequantised"], **attrs)
        self._node("MatMul", [x, w], [y])

    def _lengths(self) -> list[str]:
        one, axis = self._store("one", np.array(1)), self._store("axis", np.array([1]))
        total = self._node("ReduceSum", ["attention_mask", axis], ["mask.sum"], keepdims=0)
        last = self._node(
            "Cast",
            [self._node("Sub", [total, one], ["mask.last"])],
            ["seqlens_k"],
            to=TensorProto.INT32,
        )
        length = self._node(
            "Gather",
            [self._node("Shape", ["attention_mask"], ["mask.shape"]), one],
            ["mask.length"],
            axis=0,
        )
        return [last, self._node("Cast", [length], ["total_length"], to=TensorProto.INT32)]

    def _rotations(self) -> list[str]:
        speeds = 10000.0 ** (-np.arange(0, self.rotated, 2) / self.rotated)
        angles = np.outer(np.arange(64), speeds)
        return [
            self._store(f"{f}_cache", getattr(np, f)(angles).astype(np.float32))
            for f in ("cos", "sin")
        ]

    def _attention(self, x: str, layer: str, i: int, shared: list[str], caches: list[str]) -> str:
        queries, keys = self.hidden, self.kv_heads * self.size
        past = [f"past_key_values.{i}.{c}" for c in ("key", "value")]
        if self.architecture == "qwen":  # one product for queries, keys and values
            three = [
                self._product(x, layer + "qkv_proj", self.hidden, queries + 2 * keys, bias=True),
                "",
                "",
            ]
        else:
            widths = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
            three = [
                self._product(x, layer + m, self.hidden, n, self.architecture == "phi")
                for m, n in widths.items()
            ]
        attrs = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "scale": self.size**-0.5}
        if self.architecture == "phi":
            turn = {"num_heads": self.heads, "rotary_embedding_dim": self.rotated}
            three[:2] = [
                self._node(
                    "RotaryEmbedding", [v, "position_ids", *caches], [v + "_rotated"], _MS, **turn
                )
                for v in three[:2]
            ]
            caches = []
        else:
            attrs["do_rotary"] = 1
        outputs = [layer + "attention.out", f"present.{i}.key", f"present.{i}.value"]
        y = self._node(
            "GroupQueryAttention", [*three, *past, *shared, *caches], outputs, _MS, **attrs
        )
        return self._product(y, layer + "o_proj", self.hidden, self.hidden)

    def _mlp(self, x: str, layer: str) -> str:
        if self.architecture == "phi":
            h = self._product(x, layer + "fc1", self.hidden, self.width, bias=True)
            h = self._node("FastGelu", [h], [layer + "gelu"], _MS)
            return self._product(h, layer + "fc2", self.width, self.hidden, bias=True)
        gate = self._product(x, layer + "gate_proj", self.hidden, self.width)
        up = self._product(x, layer + "up_proj", self.hidden, self.width)
        silu = self._node(
            "Mul", [gate, self._node("Sigmoid", [gate], [layer + "sigmoid"])], [layer + "silu"]
        )
        h = self._node("Mul", [silu, up], [layer + "gated"])
        return self._product(h, layer + "down_proj", self.width, self.hidden)

    def _norm(self, skip: str, x: str, name: str, last: bool = False) -> tuple[str, str]:
        """The norm of the sum, and the sum."""
        parts = [self._vector(name + ".weight", 0.1, self.hidden, mean=1.0)]
        op = "SimplifiedLayerNormalization"
        if self.architecture == "phi":
            op, parts = (
                "LayerNormalization",
                [*parts, self._vector(name + ".bias", 0.1, self.hidden)],
            )
        if not skip:
            return self._node(op, [x, *parts], [name + ".out"], axis=-1, epsilon=1e-5), x
        outputs = [name + ".out"] if last else [name + ".out", "", "", name + ".sum"]
        self._node("Skip" + op, [skip, x, *parts], outputs, _MS, epsilon=1e-5)
        return outputs[0], outputs[-1]

    def build(self) -> onnx.ModelProto:
        shared, caches = self._lengths(), self._rotations()
        table = self._vector("model.embed_tokens.weight", 1.0, self.vocabulary, self.hidden)
        h = self._node("Gather", [table, "input_ids"], ["embedded"])
        y, skip = self._norm("", h, "model.layers.0.input_layernorm")
        for i in range(self.layers):
            layer, last = f"model.layers.{i}.", i == self.layers - 1
            a = self._attention(y, layer + "attn.", i, shared, caches)
            y, skip = self._norm(skip, a, layer + "post_attention_layernorm")
            m = self._mlp(y, layer + "mlp.")
            name = "model.norm" if last else f"model.layers.{i + 1}.input_layernorm"
            y, skip = self._norm(skip, m, name, last)
        self._node(
            "Identity", [self._product(y, "lm_head", self.hidden, self.vocabulary)], ["logits"]
        )
        inputs = {"input_ids": ["batch", "length"], "attention_mask": ["batch", "total"]}
        if self.architecture == "phi":
            inputs["position_ids"] = ["batch", "length"]
        value, float32 = helper.make_tensor_value_info, TensorProto.FLOAT
        given = [value(n, TensorProto.INT64, s) for n, s in inputs.items()]
        made = [value("logits", float32, ["batch", "length", self.vocabulary])]
        for n in [f"{i}.{c}" for i in range(self.layers) for c in ("key", "value")]:
            shape = ["batch", self.kv_heads, "past", self.size]
            given.append(value(f"past_key_values.{n}", float32, shape))
            made.append(value(f"present.{n}", float32, [*shape[:2], "total", self.size]))
        graph = helper.make_graph(self._nodes, self.architecture, given, made, self._stored)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def batch(
        self, count: int = 2, length: int = 6, seed: int = 1
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Tokens, and caches of length 0."""
        ids = np.random.default_rng(seed).integers(0, self.vocabulary, (count, length))
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if self.architecture == "phi":
            given["position_ids"] = np.tile(np.arange(length), (count, 1))
        empty = np.zeros((count, self.kv_heads, 0, self.size), np.float32)
        return given | {
            f"past_key_values.{i}.{c}": empty for i in range(self.layers) for c in ("key", "value")
        }


def language_model(
    architecture: Architecture, weights: Weights = "packed", **sizes: int
) -> onnx.ModelProto:
    return LanguageModel(architecture, weights, **sizes).build()
