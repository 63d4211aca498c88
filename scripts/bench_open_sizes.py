"""How many exports of fixed sizes `open-batch --open` opens, and whether each equals the export of
another size.

`python scripts/bench_open_sizes.py --export [NAME ...]` writes the networks of
`scripts/exporting/sized.py` at two sizes through both of PyTorch's exporters, below
`$ONNXGRAD_CACHE` (it needs torch and transformers). `python scripts/bench_open_sizes.py [NAME ...]
[--write]` opens the first size of each and compares the result with both exports, with
onnxruntime's graph optimisations off. If a network is refused because of a constant that holds
positions, it is opened again with `--extend '*'`, and because of an ambiguous number or a Resize to
a fixed size, with `--follow '*'`; the table says so. Models of
models/ whose length is symbolic are fixed at 13 and compared with themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from onnxgrad.errors import InputError  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load_own  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.jobs.surgery.fixed_dims import fixed  # noqa: E402
from onnxgrad.passes.pipeline import Pipeline  # noqa: E402
from onnxgrad.transform.open_sizes import OpenedSizes, open_dimensions  # noqa: E402
from onnxgrad.verify import feeds_for, open_session  # noqa: E402
from onnxgrad.verify.feeds.dims import roles  # noqa: E402

LENGTHS = (13, 21)  # of models/


def folder_of_exports() -> Path:
    """Returns the folder of the exports, outside the repository."""
    cache = os.environ.get("ONNXGRAD_CACHE") or Path.home() / ".cache" / "onnxgrad"
    return Path(cache) / "sized"


def exports(names: list[str]) -> Iterator[tuple[str, list[onnx.ModelProto], dict[str, list[str]]]]:
    """Yields the name, the model at each size, and the axes to open."""
    folder = folder_of_exports()
    known = json.loads((folder / "sized.json").read_text()) if folder.is_dir() else {}
    for name, (wanted, sizes) in known.items():
        for exporter in ("ts", "dyn") if not names or name in names else ():
            paths = [folder / f"{name}.{size}.{exporter}.onnx" for size in sizes]
            if all(p.exists() for p in paths):
                yield f"{name}.{exporter}", [onnx.load(p) for p in paths], wanted
    for path in sorted((ROOT / "models").glob("*.onnx")) if not names else ():
        found = lengths_of(onnx.load(path))
        if found:
            yield path.stem, *found


def lengths_of(
    model: onnx.ModelProto,
) -> tuple[list[onnx.ModelProto], dict[str, list[str]]] | None:
    """Returns a model with symbolic lengths, fixed at two sizes; its batch is 1."""
    known = roles(model.graph)
    wanted: dict[str, list[str]] = {}
    for v in model.graph.input:
        for i, d in enumerate(v.type.tensor_type.shape.dim):
            if known.get(d.dim_param, "batch") != "batch":
                wanted.setdefault(d.dim_param, []).append(f"{v.name}.{i}")
    made = []
    for n in LENGTHS if wanted else ():
        program = load_own(fixed(model, {s: n if s in wanted else 1 for s in known}))
        Pipeline.of(passes="fold-constant{floats=false},remove-unused").run(program)
        made.append(to_proto(program, weights=True))
    return (made, wanted) if made else None


ACCEPTED = ["by itself", "with --extend '*'", "with --follow '*'", "with both"]


def opened(model: onnx.ModelProto, wanted: Mapping[str, list[str]]) -> tuple[OpenedSizes, str]:
    """Returns the opened model and the options that opened it. Raises InputError."""
    follow: list[str] = []
    extend: dict[str, str] = {}
    while True:
        try:
            done = open_dimensions(load_own(model), wanted, follow, extend=extend)
            return done, ACCEPTED[bool(extend) + 2 * bool(follow)]
        except InputError as error:
            if "extend=" in str(error) and not extend:
                extend = {"*": ""}
            elif "follow=" in str(error) and not follow:
                follow = ["*"]
            else:
                raise


def differs(made: onnx.ModelProto, export: onnx.ModelProto) -> str:
    """Returns a description of the differences from the results of an export of the network."""
    feeds = feeds_for(export, seed=0)
    names = {a.name: b.name for a, b in zip(export.graph.input, made.graph.input, strict=True)}
    expected = [*open_session(export, optimize=False).run(feeds).values()]
    fed = {names[n]: v for n, v in feeds.items()}
    found = [*open_session(made, optimize=False).run(fed).values()]
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, found, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return f"WRONG: shapes {[b.shape for _, b in pairs]}"
    if all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
        return "bit-identical"
    worst = max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-9)) for a, b in pairs)
    return f"{'WRONG: ' if worst > 1e-5 else ''}{worst:.1e} of max"


def main() -> int:
    """Returns 1 if the results of an opened model differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--export", action="store_true", help="write the exports")
    parser.add_argument("--write", action="store_true", help="write results/open_sizes.md")
    given = parser.parse_args()
    if given.export:
        from exporting.sized import export_sized

        export_sized(given.names, folder_of_exports())
        return 0
    rows, counts, total, wrong = [], dict.fromkeys(ACCEPTED, 0), 0, False
    for name, models, wanted in exports(given.names):
        total += 1
        try:
            done, how = opened(models[0], wanted)
            at = [differs(to_proto(done.program, weights=True), m) for m in models]
        except InputError as error:
            how, at = f"refused: {str(error).replace('|', '/')[:200]}", ["", ""]
        wrong |= any("WRONG" in text for text in at)
        if how in counts:
            counts[how] += 1
        rows.append(f"| {name} | {how} | {' | '.join(at)} |")
        print(rows[-1], flush=True)
    shares = ", ".join(f"{n} {how}" for how, n in counts.items())
    lines = [
        f"Of {total} models of a fixed size {sum(counts.values())} open ({shares}).", "",
        "| model | opened | at its size | at the other size |", "|---|---|---|---|", *rows,
    ]  # fmt: skip
    print(lines[0])
    if given.write:
        from scripts.records import write_record

        print(write_record("open_sizes", lines))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
