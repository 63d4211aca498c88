"""Evidence for and against a weight: the name of a constant, and patterns of its elements."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, cast

import numpy as np
import onnx

from onnxgrad.ir.types import Array

# "parameter": the name of a parameter; "attribute": of a parameter or a buffer of a module;
# "buffer", "statistic": of a value of a module that is no parameter; "constant": a name that an
# exporter made up for a number or a table; "": no evidence
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
# results of torch operators that have another name in ONNX; exporters fold them and keep the name
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
    """Returns the kind of constant that `name` suggests. Exporters keep the names of modules' own
    values, most of them paths with dots, and name everything else after an operator or a number.

    scripted: `name` belongs to an initializer of TorchScript's exporter, which writes the numbers
    of formulas as Constants.
    """
    if (folded := _FOLDED.fullmatch(name)) is not None:
        return "parameter" if folded[1] in _PRODUCTS else "constant"
    last = name.rstrip("/").rpartition("/")[2].removesuffix(":0")
    word = last.rpartition(".")[2]
    for names, text, kind in (
        (_NUMBERED, last, "constant"),
        (_BUFFERS, word.lower(), "buffer"),
        (_STATISTICS, word.lower(), "statistic"),
    ):
        if names.fullmatch(text) is not None:
            return cast(Evidence, kind)
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
    """Whether TorchScript's exporter wrote the model: its nodes have paths such as /encoder/Add as
    names.
    """
    return model.producer_name == "pytorch" and any(
        n.name.startswith("/") for n in model.graph.node
    )


# the end of the name of a constant that `grad.weights.sharing` separates from a parameter
CONSTANT = "constant"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
# an entry of torch.export's list of parameters: the input, and the name in the network
_LISTED = re.compile(r"\b(p_\w+)(?:: PARAMETER |'\), )target='([^']+)'")
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")


def exported_parameters(graph: onnx.GraphProto) -> dict[str, str]:
    """Returns the network's parameters by torch.export's spelling of them, which the calls in the
    metadata of nodes use; empty if the file has no list.
    """
    text = next((e.value for e in graph.metadata_props if e.key == _SIGNATURE), "")
    return dict(_LISTED.findall(text))


def declared(graph: onnx.GraphProto) -> dict[str, str]:
    """Returns the kinds that torch.export recorded, by name: PARAMETER, BUFFER or CONSTANT_TENSOR;
    for values that the exporter folded, FOLDED if it computed them from a parameter, and CONSTANT
    if it used none.
    """
    parameters = set(exported_parameters(graph).values())
    kinds: dict[str, str] = {}
    for v in graph.value_info:
        for entry in v.metadata_props:
            if entry.key == _KIND:
                kinds[v.name] = entry.value
            elif entry.key == _FOLDED_FROM and parameters:
                sources = {a or b for a, b in _QUOTED.findall(entry.value)}
                kinds[v.name] = "CONSTANT" if sources.isdisjoint(parameters) else "FOLDED"
    return kinds


# additive masks hide elements by numbers at most this large
_HIDING = -1e4
# relative errors of a float32: of a number that was written down, and of a result computed from one
_WRITTEN, _COMPUTED = 1.2e-7, 3e-7
# a number with more digits that is common in formulas: that of GELU by tanh
_KNOWN = (0.044715,)
# this many elements in order, or on a curve, are no coincidence
_SORTED, _CURVE = 6, 16
# von Neumann's ratio of successive differences is 2 for a random order, near 0 for a smooth curve
_SMOOTH = 0.1


def is_hiding(array: Array) -> bool:
    """Whether the array contains -inf or a large negative number, which hides scores when added."""
    return bool(array.size and np.min(array.astype(np.float64)) <= _HIDING)


def is_formula_number(value: float) -> bool:
    """Whether the number has few digits, or is computed from one with few digits by a square root,
    a reciprocal, pi, a logarithm or the like.
    """
    if not np.isfinite(value) or value == 0.0:
        return True
    x = abs(value)
    if _is_short(x, 4) or any(abs(x - known) <= _WRITTEN * known for known in _KNOWN):
        return True
    with np.errstate(all="ignore"):
        kin = [1 / x, x * x, 1 / x**2, x / np.pi, np.pi / x, x * x * np.pi, x * x / np.pi]
        kin += [np.exp(x), np.exp(1 / x)]
    return any(
        _is_short(float(k), 3, _COMPUTED)
        or (0.5 < k < 1e4 and abs(np.round(k) - k) <= _COMPUTED * k)
        for k in kin
    )


def pattern(array: Array) -> str:
    """Returns the description of a pattern that a trained array does not have; empty if there is
    none.
    """
    values = array.astype(np.float64)
    if is_hiding(array):
        return "large negative numbers"
    if values.size and np.all(values == values.flat[0]):
        return f"all {values.flat[0]:g}"
    if np.all(np.round(values) == values):
        return "whole numbers"
    if array.dtype.itemsize >= 4 and all(
        _is_short(abs(float(x)), 4) for x in values[values != 0][:64]
    ):
        return "numbers of few digits"
    long = values.reshape([n for n in values.shape if n > 1])
    if long.ndim == 1 and (found := _in_one_line(long)):
        return found
    if long.ndim > 1 and _evenly_spaced(long):
        return "evenly spaced"
    return "sines of the position" if is_sinusoidal(array) else ""


def is_uniform(array: Array) -> bool:
    """Whether all elements are equal, as in many new parameters."""
    return bool(array.size and np.all(array == array.flat[0]))


def is_sinusoidal(array: Array) -> bool:
    """Whether every column is a sine of the row's number: t[p + 1] + t[p - 1] = 2 cos(f) t[p], with
    at least one f that is not 0.

    Columns lie along the last axis longer than one. A sample of 8 x 64 x 64 decides.
    """
    long: Any = array.reshape([n for n in array.shape if n > 1])
    if long.ndim < 2 or long.shape[-2] < 4:
        return False
    t = long.reshape(-1, *long.shape[-2:])[:8, :64, :64].astype(np.float64)
    sizes = np.sum(t[:, 1:-1] ** 2, 1)
    if np.mean(sizes > 0) <= 0.5:  # zeros are sines of any frequency
        return False
    around, at = t[:, 2:] + t[:, :-2], t[:, 1:-1]
    twice_cos = np.sum(around * at, 1) / np.maximum(sizes, 1e-30)
    near = 1e-3 if array.dtype.itemsize >= 4 else 2e-2
    fits = np.abs(around - twice_cos[:, None] * at).max() <= near * np.abs(t).max()
    # columns that are constant or straight lines fit as well
    return bool(fits and np.any((np.abs(twice_cos) < 2 - 1e-3) & (sizes > 0)))


def are_cos_and_sin(a: Array, b: Array) -> bool:
    """Whether a^2 + b^2 is constant, so that a and b are a cosine and a sine of the same angles."""
    if a.shape != b.shape or is_uniform(a):
        return False
    sizes = a.astype(np.float64) ** 2 + b.astype(np.float64) ** 2
    near = 1e-3 if min(a.dtype.itemsize, b.dtype.itemsize) >= 4 else 2e-2
    return bool(sizes.size and sizes.max() > 0 and sizes.max() - sizes.min() <= near * sizes.max())


def is_monotone(array: Array) -> bool:
    """Whether all elements are positive and strictly ascending or descending, like frequencies."""
    values = array.astype(np.float64).ravel()
    steps = np.diff(values)
    return bool(values.size and values.min() > 0 and (np.all(steps > 0) or np.all(steps < 0)))


def _in_one_line(values: Array) -> str:
    steps = np.diff(values)
    if len(values) > 2 and _evenly_spaced(values):
        return "evenly spaced"
    if len(values) >= _SORTED and (np.all(steps >= 0) or np.all(steps <= 0)):
        return "in order"
    smooth = len(values) >= _CURVE and np.sum(steps**2) <= _SMOOTH * np.sum(
        (values - values.mean()) ** 2
    )
    return "a smooth curve" if smooth else ""


def _evenly_spaced(values: Array) -> bool:
    """Whether the elements of every row are evenly spaced along the last axis."""
    if values.shape[-1] < 3:
        return False
    bends = np.abs(np.diff(values, n=2))
    return bool(bends.max() <= 1e-5 * np.abs(values).max())


def _is_short(x: float, digits: int, near: float = _WRITTEN) -> bool:
    """Whether `x >= 0` has at most this many significant digits."""
    return bool(np.isfinite(x) and abs(float(f"{x:.{digits - 1}e}") - x) <= near * x)
