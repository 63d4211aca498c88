"""Latency of exported transformers at realistic sizes: hidden 384 to 1,024, length 128 and 512,
batch 1 and 8, through both of PyTorch's exporters.

`python scripts/bench_real_sizes.py --export [NAME ...]` writes them below `$ONNXGRAD_CACHE` (it
needs torch, transformers, diffusers and onnxscript): through TorchScript at opset 17 with open
sizes, and by the newer exporter, as it does by default, with fixed sizes. `python
scripts/bench_real_sizes.py [NAME ...] [--tune SECONDS] [--write]` measures them and needs none of
these. `--packaged` measures the models of `fetch_models.py` instead, as they ship.

`products` are the matrix products and Attentions of the result at the newer opset alone, in a
graph that reads their operands as inputs: the share of the export's time that no rewrite of the
rest saves.

Times are CPU time relative to the export's, one thread, all files in turns, at onnxruntime's
default level on both sides. `again` is a copy of the export, whose ratio shows the noise. Results
are compared with the export's, with onnxruntime's graph optimisations off; the export's are
compared with PyTorch's.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from scripts.bench_exports import (  # noqa: E402  # the script runs from a checkout
    AGAIN,
    SLOWER,
    at_level,
    cases,
    counted,
    is_slower,
    ratios,
    worst_difference,
)
from scripts.fetch_models import SOURCES, cache_folder  # noqa: E402
from scripts.records import write_record  # noqa: E402
from scripts.sessions import session  # noqa: E402

# hidden size and heads of each network of exporting/open_sizes.py
WIDTHS = {
    "bert_sdpa": (384, 12), "bert_eager": (768, 12), "roberta": (1024, 16), "gpt2": (768, 12),
    "llama": (1024, 16), "qwen3": (768, 12), "clip": (512, 8), "t5": (512, 8),
}  # fmt: skip
LENGTHS = ((1, 128), (8, 128), (1, 512))
# sizes at which the packaged models are used, by symbol or by input
_SPEECH = {"batch": 1, "sequence": 576}
PACKAGED: dict[str, dict[str, Any]] = {
    "silero_16k": _SPEECH, "silero_ifless": _SPEECH, "mtcnn_pnet": {"N": 1, "M1": 240, "M2": 320},
    "mtcnn_rnet": {"N": 32}, "mtcnn_onet": {"N": 16}, "rapidocr_rec": {"x": (1, 3, 48, 320)},
    "rapidocr_cls": {"x": (6, 3, 48, 192)}, "caustic": {"num_atoms": 1200, "num_edges": 12000,
    "num_residues": 150},
}  # fmt: skip
WORST = 1e-4
PRODUCTS = frozenset({"Attention", "Conv", "ConvTranspose", "Gemm", "MatMul"})
ALONE = "products"


def export(names: list[str]) -> None:
    """Writes NAME-script.onnx, NAME-dynamo-BxL.onnx and the inputs of each."""
    import torch
    from exporting.common import Spec, flat, numpy_of, randomise, to_onnx, to_onnx_by_script
    from exporting.open_sizes import Size, networks

    folder = cache_folder("real_sizes")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        width, heads = WIDTHS[name]
        network = networks(Size(width, heads, layers=2, rows=516))[name]
        torch.manual_seed(1)
        module = network.build().eval()
        randomise(module)
        feeds = {size: network.inputs(*size) for size in LENGTHS}
        arrays = {}
        for (batch, length), found in feeds.items():
            with torch.no_grad():
                results = enumerate(flat(module(*found.values())))
            named = {f"in:{k}": v for k, v in found.items()} | {f"out:{i}": v for i, v in results}
            arrays |= {f"{batch}x{length}:{key}": numpy_of(v) for key, v in named.items()}
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
        opened = Spec(name, lambda: None, name, ("y",), dynamic=network.open)  # type: ignore[arg-type,return-value]
        files = {
            f"{name}-script": to_onnx_by_script(opened, module, network.inputs(2, 6), fold=True)
        }
        fixed = Spec(name, lambda: None, name, ("y",))  # type: ignore[arg-type,return-value]
        for (batch, length), found in feeds.items():
            files[f"{name}-dynamo-{batch}x{length}"] = to_onnx(fixed, module, found, optimize=True)
        for file, proto in files.items():
            onnx.save(proto, folder / f"{file}.onnx")
            print(f"{file}.onnx: opset {proto.opset_import[0].version}", flush=True)


def files_of(name: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yields the exporter, the file and the feeds of each size."""
    folder = cache_folder("real_sizes")
    for size, case in cases(folder / f"{name}.npz").items():
        yield "script", folder / f"{name}-script.onnx", {size: case}
        yield "dynamo", folder / f"{name}-dynamo-{size}.onnx", {size: case}


def packaged(name: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yields "package", the file and the feeds of a packaged model, with its own results."""
    from onnxgrad.verify import feeds_for

    folder = cache_folder("models" if name in SOURCES else "packaged")
    path, sizes = folder / f"{name}.onnx", PACKAGED.get(name, {})
    rng = np.random.default_rng(0)
    given = {k: rng.random(v, np.float32) for k, v in sizes.items() if isinstance(v, tuple)}
    dims = None if given else sizes
    feeds = feeds_for(onnx.load(path), seed=0, dims=dims, given=given or None)
    out = at_level(path, "DISABLE_ALL").run(None, feeds)
    size = "x".join(str(v) for v in max((np.shape(v) for v in feeds.values()), key=len))
    yield "package", path, {size: {"in": feeds, "out": dict(enumerate(out))}}


def ways_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the options of `optimize` for each column."""
    ways: dict[str, dict[str, Any]] = {"optimize": {}} if args.packaged else {}
    ways[f"opset {args.opset}"] = {"target_opset": args.opset}
    if args.tune:
        ways["tuned"] = {"target_opset": args.opset, "tune": args.tune}
    return ways


def made(
    path: Path, folder: Path, ways: Mapping[str, dict[str, Any]], feeds: Mapping[str, Any]
) -> dict[str, Path]:
    """Returns the files to compare, by label; tuning measures at the size of `feeds`."""
    import onnxgrad

    found = {"export": path, AGAIN: folder / f"{AGAIN}.onnx"}
    found[AGAIN].write_bytes(path.read_bytes())
    for label, options in ways.items():
        found[label] = folder / f"{label}.onnx"
        measured_on = {"inputs": dict(feeds)} if "tune" in options else {}
        result = onnxgrad.optimize(path, verify=False, **options, **measured_on)
        onnx.save(result, found[label])
    return found


def products_of(path: Path, feeds: Mapping[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Returns the products of a model as a graph of their own, and the values that they read."""
    from onnxruntime import GraphOptimizationLevel

    model = onnx.load(path)
    graph = model.graph
    stored = {v.name: onnx.numpy_helper.to_array(v) for v in graph.initializer}
    fixed = set(stored)
    for node in graph.node:
        if all(name in fixed or not name for name in node.input):
            fixed.update(node.output)
    nodes = [node for node in graph.node if node.op_type in PRODUCTS]
    read = dict.fromkeys(name for node in nodes for name in node.input if name)
    known = {**stored, **feeds}
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in read if name not in known)
    opened = session(model, graph_optimization_level=GraphOptimizationLevel.ORT_DISABLE_ALL)
    results = opened.run(None, {v.name: feeds[v.name] for v in opened.get_inputs()})
    known |= dict(zip([v.name for v in opened.get_outputs()], results, strict=True))
    # a product's result may be another's operand
    inputs = {f"in:{name}": known[name] for name in read if name not in fixed}
    constants = [onnx.numpy_helper.from_array(known[k], f"in:{k}") for k in read if k in fixed]
    for node in nodes:
        node.input[:] = [f"in:{name}" if name else "" for name in node.input]
    kind = onnx.helper.np_dtype_to_tensor_dtype
    alone = onnx.helper.make_graph(
        nodes, ALONE,
        [onnx.helper.make_tensor_value_info(k, kind(v.dtype), v.shape) for k, v in inputs.items()],
        [onnx.helper.make_tensor_value_info(n.output[0], TensorProto.FLOAT, None) for n in nodes],
        constants,
    )  # fmt: skip
    opsets = {"opset_imports": list(model.opset_import), "ir_version": model.ir_version}
    return onnx.helper.make_model(alone, **opsets), inputs


def products_alone(export: Path, newer: Path, feeds: Mapping[str, Any], seconds: float) -> float:
    """Returns the ratio of the products' CPU time to the export's: the median of eight turns."""
    opened = session(export)
    alone, inputs = products_of(newer, feeds)
    runs = [
        (opened, {v.name: feeds[v.name] for v in opened.get_inputs()}),
        (session(alone), inputs),
    ]
    found = [_seconds(*run, 1) for run in runs]
    found = [_seconds(*run, 1) for run in runs]  # behind the first run, which allocates
    times = [max(1, int(seconds / (8 * took))) for took in found]
    turns = [[_seconds(*run, n) for run, n in zip(runs, times, strict=True)] for _ in range(8)]
    return statistics.median(alone / export for export, alone in turns)


def _seconds(opened: Any, feeds: Mapping[str, Any], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        opened.run(None, feeds)
    return (time.process_time() - start) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--export", action="store_true", help="write the networks with PyTorch")
    parser.add_argument("--packaged", action="store_true", help="measure packaged models")
    parser.add_argument("--opset", type=int, default=23, metavar="N", help="the newer opset (23)")
    parser.add_argument("--tune", type=float, default=0, help="seconds for each file; 0: not tuned")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="for each file and repeat")
    parser.add_argument("--write", action="store_true", help="write the record")
    args = parser.parse_args()
    args.names = args.names or [*(SOURCES if args.packaged else WIDTHS)]
    logging.disable(logging.WARNING)
    if args.export:
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
        export(args.names)
    else:
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """Prints the table, and records it."""
    ways, newer = ways_of(args), f"opset {args.opset}"
    labels = [*ways, *([] if args.packaged else [ALONE]), AGAIN]
    lines = [
        f"| network | hidden | exporter | size | nodes | export, ms | {' | '.join(labels)} | "
        "worst difference |",
        "|---" * (len(labels) + 7) + "|",
    ]
    print(*lines, sep="\n", flush=True)
    every: dict[str, list[float]] = {label: [] for label in labels}
    slower: list[str] = []
    for name in args.names:
        for exporter, path, case in (packaged if args.packaged else files_of)(name):
            ((size, only),) = case.items()
            with tempfile.TemporaryDirectory() as folder:
                files = made(path, Path(folder), ways, only["in"])
                off = worst_difference(files, case)
                assert only["out"], f"{path.name}: no results to compare with"
                milliseconds, found = ratios(files, only["in"], args)
                if ALONE in labels:
                    pair = files["export"], files[newer]
                    found[ALONE] = [products_alone(*pair, only["in"], args.seconds)]
                nodes = " to ".join(str(counted(files[k])[0]) for k in ("export", newer))
            if max(off.values()) > WORST:
                sys.exit(f"{path.name}: the results differ: {off}")
            for label in labels:
                every[label].append(statistics.median(found[label]))
                if label in ways and is_slower(found[label]):
                    slower.append(f"{name} by {exporter} at {size} ({label})")
            cells = " | ".join(f"{statistics.median(found[label]):.3f}" for label in labels)
            lines.append(
                f"| {name} | {WIDTHS.get(name, ('',))[0]} | {exporter} | {size} | {nodes} | "
                f"{milliseconds:.1f} | {cells} | {max(off.values()):.1e} |"
            )
            print(lines[-1], flush=True)
    means = " | ".join(f"{statistics.geometric_mean(every[label]):.3f}" for label in labels)
    lines.append(f"| geometric mean | | | | | | {means} | |")
    kind = "Packaged models" if args.packaged else "Exports of two layers"
    size = "of the largest input" if args.packaged else "batch x length"
    text = [
        f"{kind} (`scripts/bench_real_sizes.py`); size: {size}. "
        f"CPU time over the export's, one thread, in turns, median of {args.repeats} repeats; "
        f"{ALONE}: the products and Attentions of the result alone.",
        "", *lines, "",
        f"Slower than the export by more than {SLOWER - 1:.0%} in most repeats: "
        f"{', '.join(slower) or 'none'}.",
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
    ]  # fmt: skip
    print("\n".join(text[-4:]))
    if args.write:
        print(write_record("packaged" if args.packaged else "real_sizes", text))


if __name__ == "__main__":
    main()
