"""What five tools do with the same files: `python scripts/compare_tools.py --peers-python PYTHON
[--write]`.

PYTHON is an interpreter that has onnxsim, onnxslim, onnxscript and onnxoptimizer. Every cell is
measured: tools run with their defaults on the models of models/ and on small files, each of which
asks one question. With `--write`, writes scripts/results/compared.md and the table of
onnxgrad/help/compared.md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from bench_latency_peers import PEERS, ROOT, peer
from count_products import PRODUCTS, count, version
from onnx import ModelProto, parser
from records import write_record

import onnxgrad
from onnxgrad.grad.coverage import coverage
from onnxgrad.verify import RunFailed, run

PAGE = ROOT / "onnxgrad" / "help" / "compared.md"
OURS = "onnxgrad"
TOOLS = (OURS, *PEERS)
TIMEOUT = 300.0
_OFF = 1e-3  # of an output's largest value: more is no rounding
Tool = Callable[[Path], ModelProto | None]


def optimised(name: str, python: str, folder: Path) -> Tool:
    """Returns a function that runs a tool on a file; None if it fails."""

    def tool(path: Path) -> ModelProto | None:
        if name == OURS:
            try:
                return onnxgrad.optimize(str(path))
            except onnxgrad.OnnxgradError:
                return None
        target = folder / f"{path.stem}.{name}.onnx"
        return None if peer(python, name, path, target, TIMEOUT) else onnx.load(target)

    return tool


def far(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two results differ by more than rounding."""
    return not np.abs(a - b).max(initial=0) <= _OFF * np.abs(a).max(initial=0)


def differs(model: ModelProto, other: ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    """Whether the second model does not run, or has other results, without onnxruntime's own
    rewrites.
    """
    wanted = run(model, feeds, optimize=False)
    try:
        found = run(other, feeds, optimize=False)
    except (RunFailed, onnxgrad.OnnxgradError):
        return True
    pairs = [(wanted[name], found.get(name)) for name in wanted]
    return any(b is None or a.shape != b.shape or far(a, b) for a, b in pairs)


# ---- the questions: each returns a cell for one tool ---------------------------------------------


def models() -> list[Path]:
    """Returns the models of models/, each of which has inputs and results in a .npz."""
    return sorted((ROOT / "models").glob("*.onnx"))


def feeds_of(path: Path) -> dict[str, np.ndarray]:
    """Returns the inputs that lie beside a model."""
    model = onnx.load(path)
    stored = np.load(path.with_name(path.name.split(".")[0] + ".npz"))
    names = [v.name for v in model.graph.input]
    return {name: stored[f"in:{name}"] for name in names if f"in:{name}" in stored.files}


def over_models(tool: Tool) -> dict[str, str]:
    """Returns the cells on nodes, products and results of all models."""
    before = after = products = made = failed = wrong = 0
    for path in models():
        model = onnx.load(path)
        result = tool(path)
        before += len(model.graph.node)
        products += count(model, PRODUCTS | {"Conv"})
        failed += result is None
        result = result or model
        after += len(result.graph.node)
        made += count(result, PRODUCTS | {"Conv"})
        wrong += differs(model, result, feeds_of(path))
    total = len(models())
    return {
        f"nodes left of the {before:,} in {total} models": f"{after:,}",
        f"products and convolutions left of {products:,}": f"{made:,}",
        "models on which it fails": str(failed),
        "results that are off or do not run": str(wrong),
    }


def small(text: str, name: str, folder: Path) -> Path:
    """Writes a small model."""
    path = folder / f"{name}.onnx"
    onnx.save(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'), path)
    return path


def keeps_metadata(tool: Tool, folder: Path) -> str:
    path = small(
        "g (float[N,4] x) => (float[N,4] y) "
        "{ a = Relu (x) b = Identity (a) y = Tanh (b) }", "metadata", folder
    )  # fmt: skip
    model = onnx.load(path)
    for node in model.graph.node:
        node.metadata_props.add(key="trace", value=node.op_type)
    onnx.save(model, path)
    result = tool(path)
    kept = {e.value for n in result.graph.node for e in n.metadata_props} if result else set()
    return yes({"Relu", "Tanh"} <= kept)


def rewrites_branches(tool: Tool, folder: Path) -> str:
    path = small(
        """g (bool c, float[4] x) => (float[4] y) { y = If (c) <then_branch = t () => (float[4] p)
        { a = Identity (x) b = Neg (a) d = Neg (b) p = Neg (d) },
        else_branch = e () => (float[4] q) { q = Relu (x) }> }""",
        "branches", folder,
    )  # fmt: skip
    result = tool(path)
    node = next((n for n in result.graph.node if n.op_type == "If"), None) if result else None
    if node is None:
        return "fails"
    return yes(len(next(a for a in node.attribute if a.name == "then_branch").g.node) < 4)


def keeps_defaults(tool: Tool, folder: Path) -> str:
    """Whether a weight that is also an input may still be replaced by the caller."""
    text = "g (float[4] x, float w) => (float[4] y) { v = Add (w, w) y = Mul (x, v) }"
    path = small(text, "defaults", folder)
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(3), "w"))
    onnx.save(model, path)
    result = tool(path)
    feeds = {"x": np.ones(4, np.float32), "w": np.array(5, np.float32)}
    return yes(result is not None and not differs(model, result, feeds))


def opens_batch(name: str, python: str, folder: Path) -> str:
    """Whether an export with a batch of 1, whose Reshape says 1, runs on three rows."""
    path = small(
        "g (float[1,2,3] x) => (float[1,3,2] y) "
        "<int64[4] s = {1, 2, 3, 1}, int64[3] t = {1, 3, 2}> "
        "{ a = Reshape (x, s) b = Transpose <perm = [0, 2, 1, 3]> (a) y = Reshape (b, t) }",
        "batch", folder,
    )  # fmt: skip
    target = folder / f"batch.{name}.onnx"
    calls = {
        "onnxsim": "onnxsim.simplify(model, overwrite_input_shapes={'x': [-1, 2, 3]})[0]",
        "onnxslim": "onnxslim.slim(model, input_shapes=['x:-1,2,3'])",
    }
    if name == OURS:
        onnx.save(onnxgrad.open_batch(str(path)), target)
    elif name not in calls:
        return "-"
    else:
        code = f"import onnx, {name}; model = onnx.load({str(path)!r}); out = {calls[name]}; "
        code += f"onnx.save(out, {str(target)!r})"
        subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, timeout=TIMEOUT)
    if not target.is_file():
        return "no"
    x = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    try:
        found = run(onnx.load(target), {"x": x}, optimize=False)["y"]
    except (RunFailed, onnxgrad.OnnxgradError):
        return "no"
    return yes(np.array_equal(found, x.transpose(0, 2, 1)))


_GRADIENTS = "operators with a gradient, of the 144 that have one"


def differentiable() -> set[str]:
    """Returns the operators of the default domain that have a derivative."""
    return {*(ROOT / "tests" / "data" / "differentiable.txt").read_text().split()}


def yes(holds: bool) -> str:
    return "yes" if holds else "no"


def has(python: str, code: str) -> str:
    """Returns what the code prints in the peers' interpreter, or "no"."""
    done = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True)
    return done.stdout.strip() if not done.returncode else "no"


def abilities(name: str, python: str) -> dict[str, str]:
    """Returns the cells on what a package offers beside optimising."""
    onnxsim = {
        _GRADIENTS: "import onnxsim.graph_grad as g; print(*g.SUPPORTED_OPS)",
        "decides rewrites in exact arithmetic": "import onnxsim.certify; print('yes')",
        "bounds of rounding errors": "import onnxsim.fp_error; print('yes')",
        "ranges of inputs in the file": "import onnxsim.ranges; print('yes')",
        "LoRA adapters": "from onnxsim import inject_lora; print('yes')",
        "quantises to int8, int4": "from onnxsim import quantize_static; print('yes')",
        "writes CoreML, TFLite": "from onnxsim import export_coreml, export_tflite; print('yes')",
    }
    own = {
        _GRADIENTS: str(
            len({r.name for r in coverage() if r.kind != "missing"} & differentiable())
        ),
        "decides rewrites in exact arithmetic": "yes",
        "bounds of rounding errors": "no",
        "ranges of inputs in the file": "yes",
        "LoRA adapters": "yes",
        "quantises to int8, int4": "no",
        "writes CoreML, TFLite": "no",
    }
    if name == OURS:
        return own
    found = {row: has(python, code) if name == "onnxsim" else "no" for row, code in onnxsim.items()}
    if name == "onnxsim":
        found[_GRADIENTS] = str(len({*found[_GRADIENTS].split()} & differentiable()))
    return found


def column(name: str, python: str) -> dict[str, str]:
    """Returns all cells of a tool."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tool = optimised(name, python, folder)
        return {
            **over_models(tool),
            "keeps the metadata of nodes": keeps_metadata(tool, folder),
            "rewrites inside branches": rewrites_branches(tool, folder),
            "leaves defaults of inputs to the caller": keeps_defaults(tool, folder),
            "opens a batch of 1 that a Reshape repeats": opens_batch(name, python, folder),
            **abilities(name, python),
        }


def main() -> None:
    """Prints the table, or writes it."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--peers-python", default=sys.executable)
    arguments.add_argument("--write", action="store_true")
    args = arguments.parse_args()
    cells = {name: column(name, args.peers_python) for name in TOOLS}
    lines = [f"| | {' | '.join(TOOLS)} |", "|---" * (1 + len(TOOLS)) + "|"]
    lines += [f"| {row} | {' | '.join(cells[t][row] for t in TOOLS)} |" for row in cells[OURS]]
    print("\n".join(lines))
    if args.write:
        versions = "; ".join(version(name, [args.peers_python]) for name in PEERS)
        write_record("compared", [versions, "", *lines])
        page = PAGE.read_text(encoding="utf-8")
        table = "\n".join(lines)
        page = re.sub(r"(?ms)^\| \| onnxgrad.*?(?=\n\n)", lambda _: table, page)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
