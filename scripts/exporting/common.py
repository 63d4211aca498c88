"""Turn a PyTorch module into a checked, path-free ONNX file with its inputs and PyTorch's own
outputs beside it.
"""

from __future__ import annotations

import collections
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from sessions import session

OPTIMIZED, RAW = ".onnx", ".raw.onnx"  # optimize=True and optimize=False
STACK_TRACE = "pkg.torch.onnx.stack_trace"
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<where>\S+)')
# Nothing committed may say on which machine it was made: no absolute path of a source file, none of
# these folders.
SOURCE_PATH = re.compile(rb"(?<![\w.])/(?:[\w.+-]+/)+[\w-]+\.py\b|site-packages")
MACHINE_FOLDERS = tuple(
    str(p).encode() for p in (sys.prefix, Path.home(), Path(__file__).resolve().parents[2])
)

VOCABULARY = 1000  # of networks that a Size describes


@dataclass(frozen=True)
class Size:
    """The sizes of a transformer. `rows`: the longest sequence."""

    width: int = 256
    heads: int = 4
    layers: int = 2
    rows: int = 160

    @property
    def named(self) -> dict[str, int]:
        """As configurations of the transformers library call them."""
        return {
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "intermediate_size": 4 * self.width,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": self.rows,
        }


@dataclass(frozen=True)
class Spec:
    """One topology: how to build it, what to feed it, and what the exported file is expected to
    count.
    """

    name: str
    build: Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]]
    what: str
    outputs: tuple[str, ...]
    counts: Mapping[str, int] = field(
        default_factory=dict
    )  # operator group ("MatMul+Gemm", "Conv") -> count
    dynamic: Mapping[str, Mapping[int, str]] = field(
        default_factory=dict
    )  # input -> axis -> symbol
    files: tuple[str, ...] = (OPTIMIZED,)  # the exports that are committed
    script: bool = False  # through TorchScript, the exporter before dynamo


def randomise(model: torch.nn.Module) -> None:
    """Gives biases and norm parameters random values as after training; zeros make passes look
    better than they are.

    biases ~ N(0, .1), norm weights ~ U(.5, 1.5), running_mean ~ N(0, .2), running_var ~ U(.5, 1.5);
    in place.
    """
    with torch.no_grad():
        for module in model.modules():
            is_norm = "norm" in type(module).__name__.lower()
            for name, parameter in module.named_parameters(recurse=False):
                if "bias" in name:
                    parameter.normal_(0, 0.1)
                elif is_norm and parameter.dim() == 1:
                    parameter.uniform_(0.5, 1.5)
            for name, buffer in module.named_buffers(recurse=False):
                if name == "running_mean":
                    buffer.normal_(0, 0.2)
                elif name == "running_var":
                    buffer.uniform_(0.5, 1.5)


def keep_variance(model: torch.nn.Module) -> torch.nn.Module:
    """Normal Conv weights of variance 2 / fan_in, in place; returns the model.

    The libraries' own initialisation makes a deep CNN with random norm statistics forget its input
    (the output moved by 3e-7 of its maximum between two images), and then no comparison of outputs
    could see a wrong rewrite.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    return model


def image(*shape: int) -> torch.Tensor:
    """A random normal image in steps of 1/16: like a real one it has few distinct values, so it
    compresses well.
    """
    return (torch.randn(*shape) * 16).round() / 16


def one_line(trace: str) -> str:
    """The innermost frame of a Python stack trace as `package/file.py:LINE in FUNCTION`, without
    machine paths.
    """
    frames = list(FRAME.finditer(trace))
    if not frames:
        return "unknown"
    last = frames[-1]
    path = last["file"].replace("\\", "/")
    for root in ("site-packages/", "scripts/"):
        if root in path:
            path = path.rsplit(root, 1)[1]
            break
    else:
        path = Path(path).name
    return f"{path}:{last['line']} in {last['where']}"


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of the main graph, of nested graphs and of local functions."""
    todo: list[Any] = [model.graph, *model.functions]
    while todo:
        for node in todo.pop().node:
            yield node
            for attribute in node.attribute:
                todo.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)


def scrub(model: onnx.ModelProto) -> None:
    """Replaces the value of every stack trace by one neutral line; all other metadata stays. In
    place.

    Raises ValueError if any machine path is left anywhere in the model.
    """
    for node in every_node(model):
        for entry in node.metadata_props:
            if entry.key == STACK_TRACE:
                entry.value = one_line(entry.value)
    blob = model.SerializeToString()
    found = {*SOURCE_PATH.findall(blob), *(folder for folder in MACHINE_FOLDERS if folder in blob)}
    if found:
        raise ValueError(f"the exported model still names {sorted(found)}")


def operator_counts(model: onnx.ModelProto) -> collections.Counter[str]:
    """How often each operator occurs, nested graphs and functions included; plus the group
    MatMul+Gemm.
    """
    counts = collections.Counter(node.op_type for node in every_node(model))
    counts["MatMul+Gemm"] = counts["MatMul"] + counts["Gemm"]
    return counts


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous copy, so that the saved file does not depend on the tensor's strides."""
    return np.array(tensor.detach().cpu().numpy(), order="C")


def flat(result: Any) -> list[torch.Tensor]:
    """The tensors of a module's result in the order in which the exporter names them."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [t for value in result.values() for t in flat(value)]
    return [t for value in result for t in flat(value)]


def run_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Runs on CPU with default graph optimisation, as deployed."""
    opened = session(model)
    names = [output.name for output in opened.get_outputs()]
    return dict(zip(names, opened.run(names, dict(feeds)), strict=True))


def worst_difference(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> float:
    """Largest |got - want| over all outputs, relative to each output's largest magnitude."""
    worst = 0.0
    for name, value in want.items():
        if got[name].shape != value.shape:
            raise ValueError(
                f"output {name} has shape {got[name].shape}, PyTorch says {value.shape}"
            )
        scale = max(float(np.abs(value).max()), 1e-30)
        worst = max(worst, float(np.abs(got[name] - value).max()) / scale)
    return worst


def to_onnx(
    spec: Spec, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, optimize: bool
) -> onnx.ModelProto:
    """Exports with the dynamo exporter; inputs are passed by keyword, so their names are the
    file's input names.
    """
    dynamic: dict[str, dict[int, Any] | None] | None = None
    if spec.dynamic:
        symbols = {
            s: torch.export.Dim(s, min=1, max=512)
            for axes in spec.dynamic.values()
            for s in axes.values()
        }
        dynamic = {
            name: {axis: symbols[s] for axis, s in spec.dynamic.get(name, {}).items()}
            for name in inputs
        }
    program = torch.onnx.export(
        model,
        (),
        kwargs=inputs,
        dynamo=True,
        optimize=optimize,
        dynamic_shapes=dynamic,
        input_names=list(inputs),
        output_names=list(spec.outputs),
        verbose=False,
    )
    if program is None:
        raise RuntimeError(f"{spec.name}: the exporter returned nothing")
    proto = program.model_proto
    scrub(proto)
    return proto


def to_onnx_by_script(
    spec: Spec, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, fold: bool = False
) -> onnx.ModelProto:
    """Exports through TorchScript; inputs are passed in order. `fold`: fold constants, as the
    exporter does by default.
    """
    buffer = io.BytesIO()
    torch.onnx.export(
        model,
        tuple(inputs.values()),
        buffer,
        dynamo=False,
        opset_version=17,
        do_constant_folding=fold,
        input_names=list(inputs),
        output_names=list(spec.outputs),
        dynamic_axes={name: dict(axes) for name, axes in spec.dynamic.items()},
    )
    proto = onnx.load_from_string(buffer.getvalue())
    scrub(proto)
    return proto


def export(spec: Spec, folder: Path, files: tuple[str, ...]) -> dict[str, Any]:
    """Writes NAME.npz and the named `files` (OPTIMIZED, RAW) into `folder`; returns one summary row
    per file.

    Every file passes onnx.checker, runs in onnxruntime and agrees with PyTorch to 1e-4 of each
    output's maximum. Raises ValueError when it does not, or when the operator counts are not the
    expected ones.
    """
    torch.manual_seed(0)
    model, inputs = spec.build()
    model.eval()
    randomise(model)
    with torch.no_grad():
        expected = dict(zip(spec.outputs, map(numpy_of, flat(model(**inputs))), strict=True))
    feeds = {name: numpy_of(tensor) for name, tensor in inputs.items()}
    rows: dict[str, Any] = {}
    for suffix in files:
        proto = (
            to_onnx_by_script(spec, model, inputs)
            if spec.script
            else to_onnx(spec, model, inputs, optimize=suffix == OPTIMIZED)
        )
        onnx.checker.check_model(proto, full_check=True)
        used = {i.name: feeds[i.name] for i in proto.graph.input}
        worst = worst_difference(run_onnxruntime(proto, used), expected)
        if not worst <= 1e-4:
            raise ValueError(
                f"{spec.name}{suffix}: differs from PyTorch by {worst:.1e} of the maximum"
            )
        counts = operator_counts(proto)
        wrong = {k: counts[k] for k, v in spec.counts.items() if counts[k] != v}
        if wrong:
            raise ValueError(f"{spec.name}{suffix}: counts {wrong}, expected {dict(spec.counts)}")
        target = folder / f"{spec.name}{suffix}"
        target.write_bytes(proto.SerializeToString(deterministic=True))
        rows[target.name] = {
            "bytes": target.stat().st_size,
            "nodes": sum(1 for _ in every_node(proto)),
            "worst": worst,
            "ir": proto.ir_version,
            "opset": proto.opset_import[0].version,
            "counts": counts,
        }
    arrays = {f"in:{k}": v for k, v in feeds.items()} | {f"out:{k}": v for k, v in expected.items()}
    np.savez_compressed(folder / f"{spec.name}.npz", allow_pickle=False, **arrays)
    return rows
