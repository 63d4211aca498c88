"""How many models `vmap` maps over a new axis, by which rules, and their speed: `python
scripts/bench_vmap.py [--write] [--no-suite] [--only TEXT] [--rounds N] [MODEL ...]`, and
`python scripts/bench_vmap.py --architectures [--write]`.

The first part takes the cases of ONNX's backend suite that onnxruntime runs and that have float
outputs. Their float inputs are mapped (or all tensor inputs if none is float), and each of three
rows must equal the model's result for that row. The second part takes models (default: models/).
Each is proved row by row, and one run of 16 rows is compared with one run of the model at batch 16
(opened by `open-batch` if it is fixed): CPU time, one thread, in turns, medians.

`--architectures` only maps and proves: the models above, exports of five other exporters, and the
packaged, training and real-size models below `$ONNXGRAD_CACHE`, each architecture once.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import InputError, OnnxgradError  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load, load_own  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.jobs.hooks import Hooks  # noqa: E402
from onnxgrad.jobs.open_batch import OpenedModel, vmap  # noqa: E402
from onnxgrad.jobs.row_declarations import VmapOptions  # noqa: E402
from onnxgrad.transform.open_batch import open_rows  # noqa: E402
from onnxgrad.transform.vmap import map_inputs  # noqa: E402
from onnxgrad.verify import feeds_for, open_session  # noqa: E402
from onnxgrad.verify.feeds.dims import roles  # noqa: E402
from onnxgrad.verify.random_operators import randoms  # noqa: E402
from onnxgrad.verify.running.session import run  # noqa: E402
from scripts.fetch_models import cache_folder as fetched  # noqa: E402
from scripts.records import write_record  # noqa: E402
from tests.backend_suite import FLOATS, Case, clamp_ir, usable  # noqa: E402
from tests.suite_table import any_opset  # noqa: E402

ROWS, OTHER = 16, 16  # rows of a measurement, other symbolic sizes
_CLOSE = {"float16": 1e-2, "bfloat16": 6e-2, "float64": 1e-9}  # of max|y|; else 1e-4
_FLOATS = ("float16", "bfloat16", "float32", "float64")
# rows other than the case's own, in turn, until the model runs on them
_ROWS = (
    lambda x, i: x * x.dtype.type((0.9, 1.1)[i]),
    lambda x, i: np.ascontiguousarray(x[..., ::-1]) if x.ndim else x,
    lambda x, i: x,
)


def is_float(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in FLOATS


def chosen(case: Case) -> list[str]:
    """Returns the names of the inputs to map."""
    weights = {t.name for t in case.model.graph.initializer}
    given = [
        v
        for v in case.model.graph.input
        if isinstance(case.inputs.get(v.name), np.ndarray) and v.name not in weights
    ]
    return [v.name for v in given if is_float(v)] or [v.name for v in given]


def rows_of(case: Case, names: list[str]) -> list[dict[str, Any]]:
    """Returns the case's feeds, and two more feeds with results of the same shape."""
    for change in _ROWS:
        rows = [case.inputs]
        for i in range(2):
            with np.errstate(all="ignore"):
                rows.append({
                    n: change(v, i) if n in names and v.dtype.name in _FLOATS else v
                    for n, v in case.inputs.items()
                })  # fmt: skip
        try:
            found = [run(clamp_ir(case.model), row, timeout=60.0) for row in rows]
        except OnnxgradError:
            continue
        shapes = [[np.shape(v) for v in r.values()] for r in found]
        if shapes[0] == shapes[1] == shapes[2]:
            return [{**row, "": result} for row, result in zip(rows, found, strict=True)]
    return []


def close(got: Any, want: Any) -> bool:
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if b.dtype.kind in "OUSb":
        return bool((a == b).all())
    limit = _CLOSE.get(b.dtype.name, 1e-4)
    x, y = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.abs(y[np.isfinite(y)]).max(initial=1e-3))
    return bool(np.allclose(x, y, rtol=0, atol=limit * scale, equal_nan=True))


def draws_alike(model: onnx.ModelProto, names: list[str]) -> bool:
    """Returns whether a model that draws random numbers is mapped rightly, as the proof says: with
    the same draws in every row.
    """
    for i, node in enumerate(model.graph.node):
        node.name = node.name or f"node_{i}"
    same = [v.name for v in model.graph.output]  # a mask does not depend on its row
    proved = vmap(model, VmapOptions(inputs=names, allow_same=same), Hooks())
    return proved.report is not None and proved.report.ok


def judged(case: Case) -> tuple[str, str]:
    """Returns the outcome (rule, scan, refused, wrong or no case) and the reason."""
    if not any(map(is_float, case.model.graph.output)):
        return "no case", "no float output"
    names = chosen(case)
    rows = rows_of(case, names)
    if not names or not rows:
        return "no case", "no input" if not names else "onnxruntime does not run it"
    model = clamp_ir(case.model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = map_inputs(load_own(model), names)
    except InputError as error:
        return "refused", str(error)
    reasons = "; ".join(done.scanned)
    if randoms(model):
        return ("scan" if draws_alike(model, names) else "wrong"), reasons
    made = to_proto(done.program)
    feeds = {n: np.stack([r[n] for r in rows]) if n in names else v for n, v in case.inputs.items()}
    try:
        got = run(made, feeds, timeout=60.0)
    except OnnxgradError as error:
        return "wrong", f"does not run: {error}"
    for value in case.model.graph.output:
        wanted = [r[""][value.name] for r in rows]
        if isinstance(wanted[0], (list, tuple)) or wanted[0] is None:
            return "refused", "sequence"
        if not close(got[value.name], np.stack(wanted)):
            return "wrong", f"output {value.name} differs"
    return ("scan" if done.scanned else "rule"), reasons


def counted(only: str = "") -> tuple[Counter[str], dict[str, list[str]]]:
    """Returns the number of cases of each outcome, and the cases of each with the reason."""
    counts, cases = Counter[str](), defaultdict[str, list[str]](list)
    with any_opset():
        for case in usable():
            if only in case.name:
                kind, reason = judged(case)
                counts[kind] += 1
                cases[kind].append(f"{case.name}: {reason}")
    return counts, cases


def suite(only: str) -> list[str]:
    """Returns the lines of the record about the backend suite."""
    counts, cases = counted(only)
    for kind in ("scan", "refused", "wrong"):
        for text in cases[kind]:
            print(f"{kind}: {text[:200]}")
    whole = sum(counts.values()) - counts["no case"]
    scans = Counter(text.partition(": ")[2].partition(":")[0] for text in cases["scan"])
    return [
        f"Backend suite: {whole} cases with float outputs, all float inputs mapped: "
        f"{counts['rule']} by rule alone, {counts['scan']} with a Scan, {counts['refused']} "
        f"refused, {counts['wrong']} wrong.",
        "",
        f"With a Scan: {', '.join(f'{op} {n}' for op, n in scans.most_common())}.",
        "",
        *(f"- refused: {text[:160]}" for text in cases["refused"]),
        *([""] if cases["refused"] else []),
    ]


def proved(model: onnx.ModelProto) -> tuple[OpenedModel, str]:
    """Returns the mapped model, and the cells of the table: the proof and the nodes by rule."""
    done = vmap(model, VmapOptions(dims=dict.fromkeys(roles(model.graph), 2)), Hooks())
    verdict = "none" if done.report is None else done.report.verdict
    shifted, scanned = (sum(c.values()) for c in (done.opened.shifted, done.opened.scanned))
    return done, f"{verdict} | {done.opened.in_place} | {shifted} | {scanned}"


def architecture(path: Path) -> str:
    """Returns the name of a file without its exporter and size: `roberta-script` is `roberta`."""
    return re.split(r"[-.]", path.stem)[0].removesuffix("_script")


def architectures() -> list[str]:
    """Returns the lines of the record of architectures: the first file of each, mapped."""
    files: dict[str, Path] = {}
    for folder in (
        ROOT / "models",
        *(fetched(kind) for kind in ("models", "training", "real_sizes")),
        *sorted((ROOT / "tests" / "data" / "exporters").iterdir()),
    ):
        for path in sorted(folder.glob("*.onnx")):
            files.setdefault(architecture(path), path)
    lines, alone = [], 0
    for name, path in files.items():
        try:
            done, cells = proved(to_proto(load(path), weights=True))
            # the proof of a model without a finite float output is none
            alone += not done.opened.scanned and done.report is not None and done.report.ok
        except OnnxgradError as error:
            cells = f"refused: {str(error)[:120]} | | |"
        lines.append(f"| {name} | {path.parent.name} | {cells} |")
        print(lines[-1], flush=True)
    return [
        f"{len(files)} architectures, all inputs mapped: {alone} by rule alone and proved equal.",
        "",
        "| architecture | folder | proof | in place | own axis | once per row |",
        "|---|---|---|---|---|---|",
        *lines,
    ]


def speed(path: Path, rounds: int) -> str:
    """Returns one line of the table: the proof, the numbers of nodes by rule, the CPU time of 16
    rows over that of the model at batch 16, and 16 runs of the model over the mapped one.
    """
    model = to_proto(load(path), weights=True)
    symbols = roles(model.graph)
    done, cells = proved(model)
    made = to_proto(done.program, weights=True)
    whole = {n: ROWS if role == "batch" else OTHER for n, role in symbols.items()}
    one = {n: 1 if role == "batch" else OTHER for n, role in symbols.items()}
    feeds = [feeds_for(model, seed=seed, dims=one) for seed in range(ROWS)]
    stacked = {n: np.stack([f[n] for f in feeds]) for n in feeds[0]}
    runs = [(made, stacked), (model, feeds[0])]
    if "batch" in symbols.values():
        runs.append((model, feeds_for(model, seed=0, dims=whole)))
    else:
        with contextlib.suppress(InputError):
            opened = open_rows(load_own(model))
            axes = opened.inputs
            joined = {
                n: np.concatenate([f[n] for f in feeds], axes[n]) if n in axes else v
                for n, v in feeds[0].items()
            }
            runs.append((to_proto(opened.program, weights=True), joined))
    sessions = [open_session(m) for m, _ in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for found, session, (_, given) in zip(times, sessions, runs, strict=True):
            found.append(min(cpu for _, cpu in session.time(given, 2)))
    mapped, single, *rest = (statistics.median(t) for t in times)
    ratio = f"{mapped / rest[0]:.2f}" if rest else "no batch"
    return f"| {path.stem} | {cells} | {ratio} | {ROWS * single / mapped:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*")
    parser.add_argument("--only", default="", help="cases of the suite with this text in the name")
    parser.add_argument("--no-suite", action="store_true")
    parser.add_argument("--architectures", action="store_true", help="map and prove; no times")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--write",
        action="store_true",
        help="write results/vmap.md, or results/vmap_architectures.md",
    )
    args = parser.parse_args()
    if args.architectures:
        lines = architectures()
        print(lines[0])
        if args.write:
            print(write_record("vmap_architectures", lines))
        return
    lines = [] if args.no_suite else suite(args.only)
    lines += [
        f"| model | proof | in place | own axis | once per row | {ROWS} rows / own batch of {ROWS} "
        f"| {ROWS} runs / {ROWS} rows |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for path in [Path(n) for n in args.model] or sorted((ROOT / "models").glob("*.onnx")):
        try:
            lines.append(speed(path, args.rounds))
        except OnnxgradError as error:
            lines.append(f"| {path.stem} | refused: {str(error)[:120]} | | | | | |")
        print(lines[-1], flush=True)
    lines += ["", "CPU time, one thread, in turns, medians; other symbolic sizes are 16."]
    if args.write:
        print(write_record("vmap", lines))


if __name__ == "__main__":
    main()
