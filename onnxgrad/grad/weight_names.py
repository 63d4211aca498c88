"""What the name of a constant says about it: exporters name what a module owns otherwise than
what a formula needs.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

import onnx

# "parameter": named as one; "attribute": a module's own, a parameter or a buffer; "buffer",
# "statistic": no parameter though a module's own; "constant": a number or table that an exporter
# had to call something; "": nothing
Evidence = Literal["parameter", "attribute", "buffer", "statistic", "constant", ""]

_PARAMETERS = frozenset(
    {
        "weight", "weights", "bias", "biases", "kernel", "gamma", "beta", "alpha", "scale",
        "offset", "slope", "gain", "temperature", "embed", "embedding", "embeddings", "latents",
        "prompt", "query", "queries", "registers", "token", "tokens", "w", "b", "readvariableop",
    }
)  # fmt: skip
_BUFFERS = re.compile(
    r"(.*_)?(buffers?|num_batches_tracked|inv_freq|freqs_cis|(cos|sin)_cached|cached_(cos|sin)|position_ids|masks?|"
    r"masked_bias|weight_[uv]|_[uv])"
)
_STATISTICS = re.compile(r"(.*_)?((running|moving)_)?(means?|stds?|vars?|variances?)")
# what torch.onnx calls folded weights, by the operator that reads them
_FOLDED = re.compile(r"onnx::([A-Za-z]+)_\d+")
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "PRelu"})
_NUMBERED = re.compile(
    r"(.*[_.])?(val(_\d+)?|const(ant)?s?(_fold_opt)?([_@.]*\d+)*(_output_\d+)?|constant_?folding|lifted_tensor_?\d*|"
    r"_?tensor_constant_?\d*|p2o\.helper\.constant\.\d+)",
    re.IGNORECASE,
)
# results of torch's operators that onnx spells otherwise; exporters fold them and keep the name
_FOREIGN = frozenset(
    {
        "arange", "clone", "copy", "embedding", "empty", "full", "full_like", "index",
        "lift_fresh_copy", "ones", "ones_like", "permute", "recip", "rsqrt", "scalar_tensor",
        "select", "t", "to_copy", "truediv", "view", "zeros",
        "zeros_like",
    }
)  # fmt: skip
_TAIL = re.compile(r"(_default|_output)?([_.:]?\d+)*$")
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


@cache
def _operators() -> frozenset[str]:
    return frozenset(s.name.lower() for s in onnx.defs.get_all_schemas() if not s.domain) | _FOREIGN


def evidence(name: str, scripted: bool = False) -> Evidence:
    """What `name` says: exporters keep the names of modules' own values, most of them paths with
    dots, and call everything else by an operator or a number. `scripted`: it names an initializer
    of TorchScript's exporter, which writes the numbers of formulas as Constants.
    """
    if (folded := _FOLDED.fullmatch(name)) is not None:
        return "parameter" if folded[1] in _PRODUCTS else "constant"
    last = name.rstrip("/").rpartition("/")[2].removesuffix(":0")
    word = last.rpartition(".")[2]
    if _NUMBERED.fullmatch(last) is not None:
        return "constant"
    if _BUFFERS.fullmatch(word.lower()) is not None:
        return "buffer"
    if _STATISTICS.fullmatch(word.lower()) is not None:
        return "statistic"
    if _PATH.fullmatch(last) is None and _TAIL.sub("", last.lower()).strip("_") in _operators():
        return "constant"
    if word.lower() in _PARAMETERS or word.lower().rpartition("_")[2] in _PARAMETERS:
        return "parameter"
    return (
        "attribute"
        if _PATH.fullmatch(last) is not None or (scripted and last.isidentifier())
        else ""
    )


def is_scripted(model: onnx.ModelProto) -> bool:
    """Whether TorchScript's exporter wrote the model: its nodes are called by paths such as
    /encoder/Add.
    """
    return model.producer_name == "pytorch" and any(
        n.name.startswith("/") for n in model.graph.node
    )


def declared(graph: onnx.GraphProto) -> dict[str, str]:
    """What torch.export said of values, by name: PARAMETER, BUFFER or CONSTANT_TENSOR. Nothing
    of what was folded.
    """
    return {
        v.name: entry.value
        for v in graph.value_info
        for entry in v.metadata_props
        if entry.key == "pkg.torch.export.graph_signature.InputSpec.kind"
    }
