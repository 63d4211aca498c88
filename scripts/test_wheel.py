"""Builds the wheel and the source distribution, installs each, and checks that it works.

    python scripts/test_wheel.py [PYTHON...] [--only wheel|sdist]

Each PYTHON (default: this one) gets a fresh environment for each of the two, with the extra `cpu`.
There, away from the repository, the main command runs on a model, the result is compared with the
original, README's first Python runs, and a page of the documentation is printed. The exit code is 1
if anything failed. Needs hatchling, which the extra `dev` brings, and a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ["mobilenet_v2.raw.onnx", "bert.onnx", "training/mlp.onnx"]


class Failed(Exception):
    """A step that ended with a non-zero exit code."""


def run(*words: str | Path, cwd: Path | None = None) -> str:
    """Runs a command and returns its output. Raises Failed with the last lines."""
    # this process's environment must not replace the installed package
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env={**env, "PYTHONUTF8": "1"}, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1200,
    )  # fmt: skip
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-12:])
        raise Failed(f"{' '.join(map(str, words))}\n{tail}")
    return done.stdout


def build(folder: Path) -> dict[str, Path]:
    """Builds the two distributions and returns them by kind."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def snippet() -> str:
    """Returns README's first Python snippet about optimising and gradients."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    return next(b for b in blocks if "onnxgrad.optimize(" in b and "onnxgrad.gradient(" in b)


def try_it(python: str, archive: Path, scratch: Path) -> str:
    """Installs an archive in a fresh environment and uses it. Returns the installed versions."""
    run(python, "-m", "venv", scratch / "venv")
    bin_ = scratch / "venv" / ("Scripts" if os.name == "nt" else "bin")
    installed = bin_ / "python"
    run(installed, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{archive}[cpu]")
    for name in MODELS:
        (scratch / "models" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "models" / name, scratch / "models" / name)
    model = f"models/{MODELS[0]}"
    where = run(installed, "-c", "import onnxgrad; print(onnxgrad.__file__)", cwd=scratch)
    if not Path(where.strip()).is_relative_to(scratch):
        raise Failed(f"imported from {where.strip()}, not from what was installed")
    run(installed, "-m", "onnxgrad", "optimize", model, "-o", "out.onnx", cwd=scratch)
    run(bin_ / "onnxgrad", "verify", model, "out.onnx", cwd=scratch)
    run(installed, "-c", snippet(), cwd=scratch)
    if "# Getting started" not in run(bin_ / "onnxgrad", "help", "start", cwd=scratch):
        raise Failed("onnxgrad help start: the page is not there")
    versions = run(bin_ / "onnxgrad", "doctor", cwd=scratch)
    found = dict(line.split()[:2] for line in versions.splitlines() if len(line.split()) == 2)
    return ", ".join(f"{p} {found.get(p, '?')}" for p in ("python", "onnx", "numpy", "onnxruntime"))


def main() -> int:
    """Builds, tries, and prints a line for each environment. Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", nargs="*", metavar="PYTHON", default=[sys.executable])
    parser.add_argument("--only", choices=("wheel", "sdist"), help="default: both")
    args = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        archives = build(Path(folder) / "dist")
        for python in args.python:
            for kind, archive in archives.items():
                if args.only not in (None, kind):
                    continue
                begun = time.monotonic()
                with tempfile.TemporaryDirectory() as scratch:
                    try:
                        answer = f"works: {try_it(python, archive, Path(scratch).resolve())}"
                    except Failed as error:
                        failures += 1
                        answer = f"FAILED: {error}"
                print(f"{python}  {kind}  {answer}  ({time.monotonic() - begun:.0f} s)", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
