"""Export the training models, loss included: `python scripts/export_training.py [NAME ...]
[--full]`.

The small models go to models/training; with --full, the full-size ones go to
`$ONNXGRAD_CACHE/training`. Parameters keep PyTorch's names: the script exports with optimize=False,
turns parameters into graph inputs so that nothing folds into them, simplifies, and turns them back
into initializers. The gradients beside each file are those of reference_gradients.py.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxscript.optimizer
import torch
from exporting.common import every_node, numpy_of, run_onnxruntime, scrub
from exporting.losses import MODELS, Training
from fetch_models import cache_folder
from reference_gradients import SMALL, build, reference

OPSET = 18


def raw_export(
    training: Training, model: torch.nn.Module, inputs: dict[str, torch.Tensor]
) -> onnx.ModelProto:
    """Returns the exporter's unoptimised graph; its initializers have the parameters' names."""
    common: dict[str, Any] = {
        "kwargs": inputs,
        "input_names": list(inputs),
        "output_names": ["loss"],
        "opset_version": OPSET,
    }
    if not training.classic:
        program = torch.onnx.export(model, (), dynamo=True, optimize=False, verbose=False, **common)
        if program is None:
            raise RuntimeError(f"{training.name}: the exporter returned nothing")
        return program.model_proto
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (), str(path), dynamo=False, do_constant_folding=False, **common)
        return onnx.load(path)


def batch_statistics(proto: onnx.ModelProto) -> None:
    """Puts every BatchNormalization into training mode, in place.

    The dynamo exporter writes the inference form even where the traced call says training=True (its
    own `pkg.torch.onnx.fx_node` shows it); the loss then differs from PyTorch's, which `export`
    would notice.
    """
    for node in every_node(proto):
        if node.op_type == "BatchNormalization":
            node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
            node.output.extend(
                f"{node.input[i]}_next" for i in (3, 4)
            )  # this form requires all three outputs


def parameter_names(model: torch.nn.Module, proto: onnx.ModelProto) -> dict[str, str]:
    """Returns the parameter name, without `model.`, of each initializer.

    A tied parameter may be exported under any of its names. Raises ValueError if two initializers
    are one parameter or a parameter is missing.
    """
    canonical = {id(p): name for name, p in model.named_parameters()}
    every = {name: canonical[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    found = {t.name: every[t.name] for t in proto.graph.initializer if t.name in every}
    if sorted(found.values()) != sorted(canonical.values()):
        raise ValueError(
            "initializers and parameters differ: "
            f"{sorted(set(canonical.values()) ^ set(found.values()))}"
        )
    return {initializer: name.removeprefix("model.") for initializer, name in found.items()}


def rename(proto: onnx.ModelProto, names: dict[str, str]) -> None:
    """Renames values of the main graph, in place."""
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in every_node(proto):
        node.input[:] = [names.get(name, name) for name in node.input]
    for info in (*proto.graph.input, *proto.graph.value_info):
        info.name = names.get(info.name, info.name)


def simplified(proto: onnx.ModelProto, parameters: dict[str, str]) -> onnx.ModelProto:
    """Returns the model with a simplified graph and unchanged parameters under PyTorch's names."""
    rename(
        proto,
        parameters
        | {
            t.name: t.name.removeprefix("model.")
            for t in proto.graph.initializer
            if t.name not in parameters
        },
    )
    weights = {t.name: t for t in proto.graph.initializer if t.name in set(parameters.values())}
    constants = [t for t in proto.graph.initializer if t.name not in weights]
    inputs = list(proto.graph.input)
    stripped = onnx.ModelProto()
    stripped.CopyFrom(proto)
    del stripped.graph.initializer[:], stripped.graph.input[:]
    stripped.graph.initializer.extend(constants)
    stripped.graph.input.extend(i for i in inputs if i.name not in weights)
    stripped.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in weights.values()
    )
    result = onnxscript.optimizer.optimize(stripped)
    kept = [i for i in result.graph.input if i.name not in weights]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(weights.values())
    return result


def export(training: Training, folder: Path, *, full: bool) -> str:
    """Writes NAME.onnx and NAME.npz and returns a line about them. Raises ValueError if the loss or
    the number of nodes is wrong.
    """
    model, inputs = build(training, full=full)
    arrays = reference(model, inputs)
    proto = raw_export(training, model, inputs)
    if training.train:
        batch_statistics(proto)
    proto = simplified(proto, parameter_names(model, proto))
    scrub(proto)
    onnx.checker.check_model(proto, full_check=True)
    feeds = {name: numpy_of(value) for name, value in inputs.items()}
    loss = run_onnxruntime(proto, feeds)["loss"]
    error = abs(float(loss) - float(arrays["loss64"])) / abs(float(arrays["loss64"]))
    if loss.shape != () or not error < 1e-5:
        raise ValueError(f"{training.name}: loss is {loss}, PyTorch says {arrays['loss64']}")
    nodes = sum(node.op_type not in ("Constant", "Identity") for node in every_node(proto))
    if full and training.nodes is not None and nodes != training.nodes:
        raise ValueError(f"{training.name}: {nodes} nodes, expected {training.nodes}")
    path = folder / f"{training.name}.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **arrays)
    model_kb, arrays_kb = (
        path.with_suffix(suffix).stat().st_size / 1e3 for suffix in (".onnx", ".npz")
    )
    sizes = f"{model_kb:8.0f} kB + {arrays_kb:8.0f} kB"
    return f"{path.name:22} {nodes:4} nodes  {sizes}  loss {float(loss):.6f} ({error:.0e})"


def main(arguments: list[str]) -> int:
    """Exports the named models (default all)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--full", action="store_true", help="the full-size models, into the cache folder"
    )
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    folder = cache_folder("training") if options.full else SMALL
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or [n for n, t in MODELS.items() if options.full or not t.full_only]:
        print(export(MODELS[name], folder, full=options.full), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
