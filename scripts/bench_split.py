"""The time of the forward part of `linearize`: `python scripts/bench_split.py [--write] [--rounds
N] [MODEL ...]`.

CPU time relative to the model, one thread, in turns, medians. "bound" runs have outputs bound by
IOBinding, so that onnxruntime's own time is measured; `session.run` adds the time that Python needs
for each output. "copies" is the model with as many further outputs of the same sizes, each written
by an Add: the price of returning these bytes, whatever a gradient needs. "nodes" are those of both
graphs after onnxruntime's optimisations. The last columns compare the pair with the gradient in one
graph, and with one `session.run` for each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from scripts.records import write_record  # noqa: E402
from scripts.sessions import session  # noqa: E402

MODELS = ROOT / "models"
Feeds = Mapping[str, Any]
_SPAN = 0.02  # seconds of one measurement at least
_HEAD = (
    "model", "by", "residuals", "kB", "nodes", "forward / model, bound", "copies / model, bound",
    "forward / model, run", "copies / model, run", "pair / gradient, bound", "pair / gradient, run",
)  # fmt: skip


def feeds_of(path: Path) -> dict[str, Any]:
    """Returns the inputs beside a model; the .raw variant of a model has the same."""
    stored = np.load(path.with_name(path.name.split(".")[0] + ".npz"))
    return {k[3:]: stored[k] for k in stored.files if k.startswith("in:")}


def bound(made: Any, feeds: Feeds) -> Callable[[], None]:
    """Returns a run whose inputs and outputs are bound."""
    import onnxruntime

    binding = made.io_binding()
    for v in made.get_inputs():
        binding.bind_ortvalue_input(v.name, onnxruntime.OrtValue.ortvalue_from_numpy(feeds[v.name]))
    for v in made.get_outputs():
        binding.bind_output(v.name)
    return lambda: made.run_with_iobinding(binding)


def plain(made: Any, feeds: Feeds) -> Callable[[], None]:
    """Returns a run by `session.run`."""
    given = {v.name: feeds[v.name] for v in made.get_inputs()}
    return lambda: made.run(None, given)


def ratio(first: Sequence[Callable[[], None]], other: Callable[[], None], rounds: int) -> float:
    """Returns the median CPU time of the runs in `first`, one after the other, relative to
    `other`.
    """

    def seconds(runs: Sequence[Callable[[], None]], times: int) -> float:
        start = time.process_time()
        for _ in range(times):
            for run in runs:
                run()
        return time.process_time() - start

    seconds([*first, other], 2)
    times = 1 + int(_SPAN / max(seconds([other], 3) / 3, 1e-6))
    found = []
    for i in range(rounds):
        # both orders in turn
        if i % 2:
            a, b = seconds(first, times), seconds([other], times)
        else:
            b, a = seconds([other], times), seconds(first, times)
        found.append(a / b)
    return statistics.median(found)


def copying(model: onnx.ModelProto, arrays: Sequence[Any]) -> tuple[onnx.ModelProto, Feeds]:
    """Returns the model with a further output of the size of each array, and the further feeds."""
    made, sizes = onnx.ModelProto(), sorted({-(-a.nbytes // 4) for a in arrays})
    made.CopyFrom(model)
    graph, float32 = made.graph, TensorProto.FLOAT
    for n in sizes:
        graph.input.append(helper.make_tensor_value_info(f"copies.of.{n}", float32, [n]))
    for i, a in enumerate(arrays):
        n, out = -(-a.nbytes // 4), f"copies.{i}"
        # each number is different, so that equal nodes are not merged
        graph.initializer.append(helper.make_tensor(f"{out}.number", float32, [], [i + 1.0]))
        graph.node.append(helper.make_node("Add", [f"copies.of.{n}", f"{out}.number"], [out]))
        graph.output.append(helper.make_tensor_value_info(out, float32, [n]))
    return made, {f"copies.of.{n}": np.ones(n, np.float32) for n in sizes}


def nodes(model: onnx.ModelProto) -> int:
    """Returns the number of nodes after onnxruntime's optimisations."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        session(model, optimized_model_filepath=str(path))
        return len(onnx.load(path).graph.node)


def row(path: Path, wrt: str | None, rounds: int) -> str:
    """Returns one line of the table."""
    model, feeds = onnx.load(path), feeds_of(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = onnxgrad.linearize(model, wrt)
        targets = [str(v.of) for v in parts.manifest.adjoints]
        joint = onnxgrad.gradient(model, wrt, targets, adjoint="input")
    base, forward, backward, whole = map(session, (model, parts.forward, parts.backward, joint))
    names = [v.name for v in forward.get_outputs()]
    values = {**feeds, **dict(zip(names, forward.run(names, feeds), strict=True))}
    values |= {v.name: np.ones_like(values[str(v.of)]) for v in parts.manifest.adjoints}
    residuals = [v.name for v in parts.manifest.residuals if v.origin == "forward"]
    copied, more = copying(model, [values[n] for n in residuals])
    copies = session(copied)
    cells = [
        str(path.relative_to(MODELS).with_suffix("")),
        wrt or "inputs",
        str(len(residuals)),
        f"{sum(values[n].nbytes for n in residuals) / 1000:.0f}",
        f"{nodes(model)} {nodes(parts.forward)}",
    ]
    by_kind = []
    for run in (bound, plain):
        alone = run(base, feeds)
        by_kind += [
            ratio([run(forward, feeds)], alone, rounds),
            ratio([run(copies, {**feeds, **more})], alone, rounds),
        ]
    pairs = [
        ratio([run(forward, values), run(backward, values)], run(whole, values), rounds)
        for run in (bound, plain)
    ]
    return f"| {' | '.join([*cells, *(f'{r:.2f}' for r in (*by_kind, *pairs))])} |"


def chosen(names: Sequence[str]) -> list[tuple[Path, str | None]]:
    """Returns the models, by inputs where they have float ones, and by all weights."""
    every = (*sorted(MODELS.glob("*.onnx")), *sorted(MODELS.glob("training/*.onnx")))
    paths = [MODELS / f"{n}.onnx" for n in names] or every
    found: list[tuple[Path, str | None]] = []
    for path in paths:
        graph = onnx.load(path, load_external_data=False).graph
        floats = any(v.type.tensor_type.elem_type == TensorProto.FLOAT for v in graph.input)
        found += [(path, None)] if floats and path.parent == MODELS else []
        found += [(path, "params")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names such as training/vit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write results/split.md")
    args = parser.parse_args()
    lines = [f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD)]
    print("\n".join(lines))
    for path, wrt in chosen(args.models):
        lines.append(row(path, wrt, args.rounds))
        print(lines[-1], flush=True)
    lines += ["", *(str(__doc__).split("\n\n", 1)[1].strip().splitlines())]
    if args.write:
        print(write_record("split", lines))


if __name__ == "__main__":
    main()
