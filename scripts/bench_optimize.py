"""Optimising time beside other tools: `python scripts/bench_optimize.py [--runs N] [--write]
[MODEL ...]`.

All tools run in one warm process, from model in memory to model in memory, without proof. They take
turns, so that a slow minute of the machine affects all of them. onnxsim, onnxslim, onnxoptimizer
and onnxscript are measured if they are installed (`pip install .[peers]`). Chains of 10 000 and of
100 000 nodes are measured with onnxgrad only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.ir.load import load  # noqa: E402  # runs from a checkout, with the peers' environment
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.passes.pipeline import Pipeline  # noqa: E402
from scripts.records import write_record  # noqa: E402

Tool = Callable[[ModelProto], object]
MODELS = (
    *(
        "bert.onnx",
        "bert.raw.onnx",
        "llama.onnx",
        "llama.raw.onnx",
        "t5.onnx",
        "whisper.onnx",
        "vit.onnx",
        "gpt2.onnx",
    ),
    *("lstmcell.onnx", "mobilenet_v2.raw.onnx", "googlenet.onnx", "resnet18.onnx", "unet.onnx"),
)
OURS = "onnxgrad"


def ours(model: ModelProto) -> ModelProto:
    program = load(model)
    Pipeline.of().run(program)
    return to_proto(program)


def _onnxsim() -> Tool:
    import onnxsim

    return lambda model: onnxsim.simplify(model)


def _onnxslim() -> Tool:
    import onnxslim

    return lambda model: onnxslim.slim(model)


def _onnxoptimizer() -> Tool:
    import onnxoptimizer

    return lambda model: onnxoptimizer.optimize(model)


def _onnxscript() -> Tool:
    import onnxscript.optimizer
    import onnxscript.rewriter

    return lambda model: onnxscript.rewriter.rewrite(onnxscript.optimizer.optimize(model))


PEERS: dict[str, Callable[[], Tool]] = {
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxoptimizer": _onnxoptimizer,
    "onnxscript": _onnxscript,
}


def tools() -> tuple[dict[str, Tool], list[str]]:
    """Returns the installed tools (name and version), and the names of the missing ones."""
    found: dict[str, Tool] = {OURS: ours}
    missing = []
    for name, make in PEERS.items():
        try:
            found[name] = make()
        except ImportError:
            missing.append(name)
    return found, missing


def timed(tool: Tool, model: ModelProto) -> float | None:
    """Returns the seconds for a fresh copy of the model, or None if the tool fails."""
    copy = ModelProto()
    copy.CopyFrom(model)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        started = time.perf_counter()
        try:
            tool(copy)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            IndexError,
            AssertionError,
        ):
            return None
        return time.perf_counter() - started


def fastest(model: ModelProto, found: dict[str, Tool], runs: int) -> dict[str, float | None]:
    """Returns the seconds of every tool's fastest run; runs are interleaved, after one warm-up.

    The fastest run counts because other load can only make a run slower.
    """
    taken: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(runs + 1):
        for name, tool in found.items():
            seconds = timed(tool, model)
            if turn and seconds is not None:
                taken[name].append(seconds)
    return {name: min(values, default=None) for name, values in taken.items()}


def chain(nodes: int) -> ModelProto:
    """x -> Relu, Neg, Tanh, ... -> y, `nodes` of them, each with metadata as exporters write it."""
    ops = ("Relu", "Neg", "Tanh", "Identity", "Abs")
    made = [
        helper.make_node(ops[i % len(ops)], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}")
        for i in range(nodes)
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 8]) for n in ("v0", f"v{nodes}")
    ]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "this checkout"


def table(models: list[str], runs: int) -> list[str]:
    """Returns Markdown lines: milliseconds per tool, and the ratio of each to onnxgrad."""
    found, missing = tools()
    lines = [
        f"Not installed: {', '.join(missing)}." if missing else "All four peers are installed.",
        "",
    ]
    lines.append("| model | nodes | " + " | ".join(f"{n} {version(n)} [ms]" for n in found) + " |")
    lines.append("|---" * (len(found) + 2) + "|")
    for name in models:
        model = onnx.load(ROOT / "models" / name)
        seconds = fastest(model, found, runs)
        own = seconds[OURS] or float("nan")
        cells = [
            "fails" if s is None else f"{s * 1e3:.0f}" + ("" if n == OURS else f" ({s / own:.2f}x)")
            for n, s in seconds.items()
        ]
        lines.append(f"| {name} | {len(model.graph.node)} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return [
        *lines,
        "",
        "In brackets: the tool's time over ours; below 1x it is faster than we are.",
    ]


def chains() -> list[str]:
    """Returns Markdown lines for the two chains."""
    small, large = chain(10_000), chain(100_000)
    ours(small)
    few, many = (
        min(timed(ours, model) or float("nan") for _ in range(3)) for model in (small, large)
    )
    return [
        f"Chain of 10 000 nodes: {few:.2f} s; of 100 000 nodes: {many:.2f} s ({many / few:.1f}x)."
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="record the result in scripts/results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lines = ["Optimising time, proof off, warm, one process, fastest of interleaved runs.", ""]
    lines += [*table(arguments.models, arguments.runs), "", *chains()]
    if hasattr(os, "getloadavg"):
        lines.append(
            f"Load of the machine at the end: {os.getloadavg()[0]:.1f}: above 1, read the "
            "ratios only."
        )
    print("\n".join(lines))
    if arguments.write:
        write_record("bench_optimize", lines)


if __name__ == "__main__":
    main()
