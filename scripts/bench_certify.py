"""Exact evaluation beside onnxsim's certificates: `python scripts/bench_certify.py PYTHON [--write]
[MODEL ...]`.

PYTHON is an interpreter that has onnxsim with `onnxsim.certify`, and z3-solver. Optimises the
models of models/ and the packaged ones that `scripts/fetch_models.py` has fetched with the default
preset, decides each rewrite, and lets onnxsim certify the same pair of files. With `--write`,
writes scripts/results/exact_certify.md. Exit code 1 if either refutes anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402

import onnxgrad  # noqa: E402  # runs from a checkout
from scripts.bench_exact import record  # noqa: E402
from scripts.fetch_models import cache_folder  # noqa: E402
from scripts.records import write_record  # noqa: E402

_WINDOW, _TOTAL, _HARD = 5.0, 15.0, 90.0  # seconds for a window, a pair, and the whole process
_CERTIFY = """
import collections, json, sys, onnx
from importlib.metadata import version
from onnxsim import certify
a, b, window, total = sys.argv[1:]
times = {"timeout_ms": int(window), "total_timeout_ms": int(total)}
found = certify.certify(onnx.load(a), onnx.load(b), **times)
why = [w.detail for w in found.windows if w.status == "skipped"]
print(json.dumps([version("onnxsim"), dict(collections.Counter(found.outputs.values())), why[:1]]))
"""


def certified(python: str, original: Path, optimised: Path) -> tuple[str, dict[str, int], str]:
    """Returns onnxsim's version, its verdicts on the outputs, and why the first was skipped."""
    words = [python, "-c", _CERTIFY, str(original), str(optimised)]
    words += [str(int(1000 * s)) for s in (_WINDOW, _TOTAL)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_HARD)
    except subprocess.TimeoutExpired:
        return "", {}, f"not done in {_HARD:g} s"
    if done.returncode:
        return "", {}, (done.stderr.strip().splitlines() or ["no message"])[-1]
    version, verdicts, why = json.loads(done.stdout.splitlines()[-1])
    return version, verdicts, why[0].partition("; zonotope")[0].rpartition(": ")[2] if why else ""


def main() -> int:
    """Prints the record, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, versions, refuted, ours, theirs = [], set[str](), 0, 0, 0
    for path in options.models or [
        *sorted((ROOT / "models").glob("*.onnx")), *sorted(cache_folder("models").glob("*.onnx"))
    ]:  # fmt: skip
        report = record(path, "auto")
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "o.onnx"
            onnx.save(onnxgrad.optimize(str(path), verify=False), result)
            version, verdicts, why = certified(options.python, path, result)
        versions |= {version} - {""}
        good = sum(d.verdict in ("exact", "rounded") for d in report.algebra)
        count = len(report.algebra)
        ours += good == count
        theirs += bool(verdicts) and all(v.startswith("proved") for v in verdicts)
        refuted += any("refuted" in v for v in verdicts)
        refuted += any(d.verdict == "refuted" for d in report.each)
        words = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.items())
        rows.append(f"| {path.stem} | {good} of {count} | {words} | {why.replace('|', '/')} |")
        print(rows[-1], file=sys.stderr)
    text = [
        f"onnxsim {', '.join(versions)}: `certify` of each output of the pair, {_WINDOW:g} s a "
        f"window and {_TOTAL:g} s a pair, within its own tolerance. Ours: rewrites that are exact, "
        "or exact up to the rounding of new weights.",
        "",
        f"{len(rows)} pairs. All rewrites exact: {ours}. All outputs proved by onnxsim: {theirs}."
        f" Refuted: {refuted}.",
        "",
        "| model | rewrites exact | outputs by onnxsim | why the first was skipped |",
        "|---|---|---|---|",
        *rows,
    ]
    print(f"wrote {write_record('exact_certify', text)}" if options.write else "\n".join(text))
    return int(bool(refuted))


if __name__ == "__main__":
    sys.exit(main())
