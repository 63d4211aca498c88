"""Latency of models whose work on weights alone runs once, in a second model (`--lift`):
`python scripts/bench_lift.py [--write] [--rounds N] [MODEL=GLOB ...]`.

Three uses of models/: LoRA as inputs (each matrix W is W + k B@A, as PyTorch exports a merged
adapter), weights in int8 (DequantizeLinear by column), and the gradient of training models whose
weights are inputs. Each is optimised without --lift (A) and with it (B); both are proved. Times are
CPU time of a run, one thread, in turns, once with arrays passed to each run and once with inputs
that are bound beforehand. `once` is the time of the preparation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.jobs.surgery.fixed_dims import fixed  # noqa: E402
from onnxgrad.verify import feeds_for, open_session  # noqa: E402
from onnxgrad.verify.feeds.dims import roles  # noqa: E402
from scripts.records import write_record  # noqa: E402
from scripts.sessions import session  # noqa: E402

RANK, SCALE, LEAST = 4, 0.5, 1024  # of an adapter; elements of a matrix that is adapted
OTHER = 16  # of symbolic dimensions beside the batch


def matrices(model: ModelProto) -> Iterator[tuple[NodeProto, int, TensorProto]]:
    """Returns the matrices that products read, with the node and the operand index."""
    held = {t.name: t for t in model.graph.initializer}
    for node in list(model.graph.node):
        for i in (1, 0) if node.op_type in ("MatMul", "Gemm") else ():
            t = held.get(node.input[i])
            if t is not None and len(t.dims) == 2 and np.prod(t.dims) >= LEAST:
                yield node, i, t


def with_lora(model: ModelProto) -> tuple[ModelProto, Sequence[str]]:
    """Replaces each matrix W by W + k B@A with inputs A and B."""
    graph, done = model.graph, dict[str, str]()
    made = list[NodeProto]()
    graph.initializer.append(numpy_helper.from_array(np.float32(SCALE), "lora_scale"))
    for node, i, t in matrices(model):
        if t.name not in done:
            rows, columns = t.dims
            for name, dims in (("B", (rows, RANK)), ("A", (RANK, columns))):
                value = helper.make_tensor_value_info(f"lora_{name}.{t.name}", t.data_type, dims)
                graph.input.append(value)
            b, a, ba, scaled, done[t.name] = (
                f"lora_{what}.{t.name}" for what in ("B", "A", "BA", "scaled", "merged")
            )
            made += [
                helper.make_node("MatMul", [b, a], [ba]),
                helper.make_node("Mul", [ba, "lora_scale"], [scaled]),
                helper.make_node("Add", [t.name, scaled], [done[t.name]]),
            ]
        node.input[i] = done[t.name]
    _prepend(model, made)
    return model, ["lora_*"]


def in_int8(model: ModelProto) -> tuple[ModelProto, Sequence[str]]:
    """Replaces each matrix by int8 with a scale for each column."""
    graph, made, done = model.graph, list[NodeProto](), dict[str, str]()
    for node, i, t in matrices(model):
        if t.name not in done:
            w = numpy_helper.to_array(t)
            scale = np.maximum(np.abs(w).max(0) / 127, 1e-8).astype(np.float32)
            q, s, done[t.name] = (f"{t.name}_{what}" for what in ("int8", "scale", "float"))
            rounded = np.round(w / scale).astype(np.int8)
            graph.initializer.extend(
                numpy_helper.from_array(v, n) for v, n in ((rounded, q), (scale, s))
            )
            made.append(helper.make_node("DequantizeLinear", [q, s], [done[t.name]], axis=1))
        node.input[i] = done[t.name]
    read = {name for node in graph.node for name in node.input}
    for t in [t for t in graph.initializer if t.name in done and t.name not in read]:
        graph.initializer.remove(t)
    _prepend(model, made)
    return model, []


def with_gradient(model: ModelProto) -> tuple[ModelProto, Sequence[str]]:
    """Returns the gradient of the loss by every weight; weights are inputs with defaults."""
    keys = any(t.name.endswith("key.bias") for t in model.graph.initializer)  # gradients of 0
    made = onnxgrad.gradient(model, "params,!*key.bias" if keys else "params", "loss")
    ends = {v.name for v in made.graph.output}
    kept = [t for t in made.graph.initializer if f"{t.name}_grad" in ends]
    for t in kept:
        value = helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        made.graph.input.append(value)
    return made, [t.name for t in kept]


def _prepend(model: ModelProto, nodes: list[NodeProto]) -> None:
    rest = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(rest)


USES = {
    "LoRA as inputs": (with_lora, ("bert", "gpt2", "llama", "vit", "clip")),
    "int8 weights": (in_int8, ("bert", "gpt2", "llama", "vit")),
    "gradient, weights as inputs": (
        with_gradient,
        ("training/bert", "training/vit", "training/gpt2", "training/llama"),
    ),
}


def read(path: Path) -> ModelProto:
    """Returns a model with its symbolic sizes set."""
    model = to_proto(load(path), weights=True)
    sizes = {n: 1 if role == "batch" else OTHER for n, role in roles(model.graph).items()}
    return fixed(model, sizes) if sizes else model


def cases(named: Sequence[str]) -> Iterator[tuple[str, str, ModelProto, Sequence[str]]]:
    """Use, name, model, weights."""
    for text in named:
        path, _, globs = text.partition("=")
        yield "as given", Path(path).stem, read(Path(path)), [g for g in globs.split(",") if g]
    for use, (change, names) in USES.items() if not named else ():
        for name in names:
            yield use, name, *change(read(ROOT / "models" / f"{name}.onnx"))


def measured(model: ModelProto, weights: Sequence[str], rounds: int) -> list[str]:
    """Returns nodes of A and of both parts of B, ms of A, B and once, and the ratio of B to A."""
    feeds = feeds_for(model, seed=0)
    feeds |= {n: 0.1 * v for n, v in feeds.items() if n.startswith("lora_")}  # as small as trained
    a = onnxgrad.optimize(model, inputs=feeds)
    try:
        prepare, rest = onnxgrad.optimize(model, inputs=feeds, lift=weights or True)
        how = ""
    except onnxgrad.InputError:
        prepare, rest = onnxgrad.lift(a, weights, inputs=feeds)
        how = " (by `lift`; `optimize --lift` declines)"
    given: dict[str, Any] = {**feeds}
    given |= {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    first = open_session(prepare)
    given |= first.run({v.name: given[v.name] for v in prepare.graph.input})
    once = min(cpu for _, cpu in first.time(_feeds(prepare, given), 3))
    sessions = [(open_session(m), _feeds(m, given)) for m in (a, rest)]
    results = [s.run(f) for s, f in sessions]
    for name, value in results[0].items():
        # onnxruntime runs products of int8 weights in integers
        assert np.abs(value - results[1][name]).max() <= 0.05 * np.abs(value).max(), name
    bound = [bound_run(m, _feeds(m, given)) for m in (a, rest)]
    passed, kept = ([[], []] for _ in range(2))  # type: tuple[list[list[float]], list[list[float]]]
    for _ in range(rounds):
        for i, (part, feeds) in enumerate(sessions):
            passed[i].append(min(cpu for _, cpu in part.time(feeds, 5)))
            kept[i].append(min(spent(bound[i]) for _ in range(5)))
    counts = (len(m.graph.node) for m in (a, prepare, rest))
    return [
        *map(str, counts), *(f"{1e3 * np.median(t):.3g}" for t in passed), f"{1e3 * once:.3g}",
        ratio(passed) + how, ratio(kept),
    ]  # fmt: skip


def ratio(times: Sequence[Sequence[float]]) -> str:
    """Returns the ratio of B's time to A's, with quartiles."""
    low, middle, high = np.quantile(np.array(times[1]) / np.array(times[0]), (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def bound_run(model: ModelProto, feeds: dict[str, Any]) -> Callable[[], None]:
    """A run whose inputs are bound, and whose outputs onnxruntime allocates."""
    opened = session(model)
    binding = opened.io_binding()
    for name, value in feeds.items():
        array = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
        binding.bind_ortvalue_input(name, array)
    for output in opened.get_outputs():
        binding.bind_output(output.name)
    return lambda: opened.run_with_iobinding(binding)


def spent(run: Callable[[], None], times: int = 10) -> float:
    """The CPU time of one run."""
    start = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - start) / times


def _feeds(model: ModelProto, given: dict[str, Any]) -> dict[str, Any]:
    return {v.name: given[v.name] for v in model.graph.input}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*", metavar="MODEL=GLOB,...")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write results/lift.md")
    args = parser.parse_args()
    lines = [
        "| use | model | nodes A | once | nodes B | A ms | B ms | once ms | B / A passed | bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for use, name, model, weights in cases(args.model):
        onnx.checker.check_model(model)
        try:
            cells = measured(model, weights, args.rounds)
        except onnxgrad.OnnxgradError as error:
            cells = [f"{str(error)[:90]}", *[""] * 7]
        lines.append(f"| {' | '.join([use, name, *cells])} |")
        print(lines[-1], flush=True)
    lines += [
        "",
        "CPU time of one run, one thread, in turns; both proved equal to the model. Passed: arrays "
        "are given to each run; bound: inputs are bound once, as those set at load can be. In "
        "brackets: quartiles.",
    ]
    if args.write:
        print(write_record("lift", lines))


if __name__ == "__main__":
    main()
