"""Checks that a change keeps every byte: stores and compares digests of the results of each preset
and of `grad` for models/.

    python scripts/same_bytes.py keep before.json       # at the commit that the change starts from
    python scripts/same_bytes.py compare before.json    # after the change
    python scripts/same_bytes.py compare before.json --only bert

`compare` prints one line per difference, and exits with 1 if there is one. Every job reads the
model again, with the package beside this script.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402  # runs from a checkout

import onnxgrad  # noqa: E402
from onnxgrad.passes.presets import PRESETS  # noqa: E402

JOBS = [*PRESETS, "always", "legalize", "grad", "checkpointed"]


def made(path: Path, job: str) -> onnx.ModelProto:
    """Returns the result of one job for one model."""
    if job in ("grad", "checkpointed"):
        target = onnxgrad.load(path).main.outputs[0].name
        budget = "auto" if job == "checkpointed" else None
        return onnxgrad.gradient(path, "params", target, adjoint="input", checkpoint=budget)
    if job == "always":
        return onnxgrad.optimize(path, merge="always", allow_growth=True, verify=False)
    if job == "legalize":
        return onnxgrad.optimize(path, passes="legalize", verify=False)
    return onnxgrad.optimize(path, preset=job, verify=False)


def digests(path: Path) -> dict[str, str]:
    """Returns the number of nodes and the SHA-256 of each job's file, or its error."""
    warnings.simplefilter("ignore")
    found = {}
    for job in JOBS:
        try:
            model = made(path, job)
        except onnxgrad.OnnxgradError as error:
            words = f"{type(error).__name__}: {error}".replace(str(ROOT), "")
        else:
            digest = hashlib.sha256(model.SerializeToString(deterministic=True))
            words = f"{len(model.graph.node)} nodes {digest.hexdigest()}"
        found[f"{path.relative_to(ROOT / 'models')} {job}"] = words
    return found


def all_digests(only: str) -> dict[str, str]:
    paths = sorted(p for p in (ROOT / "models").rglob("*.onnx") if only in str(p.relative_to(ROOT)))
    with ProcessPoolExecutor(2) as pool:
        return {key: words for found in pool.map(digests, paths) for key, words in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("work", choices=["keep", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds this")
    options = parser.parse_args()
    found = all_digests(options.only)
    if options.work == "keep":
        options.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} results kept")
        return 0
    kept = json.loads(options.file.read_text(encoding="utf-8"))
    compared = [key for key in kept if options.only in f"models/{key.split(' ')[0]}"]
    different = [key for key in compared if kept[key] != found.get(key)]
    for key in different:
        print(f"{key}: {kept[key]} -> {found.get(key)}")
    print(f"{len(different)} of {len(compared)} results differ")
    return 1 if different or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
