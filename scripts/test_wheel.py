"""Builds the wheel and the source distribution, installs each, and checks that it works.

    python scripts/test_wheel.py [PYTHON...] [--only wheel|sdist] [--keep FOLDER]

Both are built twice, the second time from a copy of the repository, and must have the same bytes.
Each PYTHON (default: this one) gets a fresh environment for each of the two, with the extra `cpu`:
packages are downloaded first and installed without a package index. There, away from the
repository, the main command runs on a model, the result is compared with the original, README's
first Python runs, every page of the documentation is printed, and the stubs for type checkers are
looked for. If nothing failed, --keep puts both into FOLDER, for a release. The exit code is 1 if
anything failed. Needs hatchling, which the extra `dev` brings, and a package index.
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
# what the source distribution is built by, which pip fetches for it
BUILDS = ["hatchling"]
STUBS = "onnxgrad/**/*.pyi"


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


def build(source: Path, folder: Path) -> dict[str, Path]:
    """Builds the two distributions of a source tree and returns them by kind."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def build_twice(scratch: Path) -> dict[str, Path]:
    """Returns the two distributions by kind. Raises Failed if a second build, from the archive of
    the first, has other bytes.
    """
    first = build(ROOT, scratch / "dist")
    shutil.unpack_archive(first["sdist"], scratch / "source")
    (source,) = (scratch / "source").iterdir()
    second = build(source, scratch / "again")
    if other := [k for k in first if first[k].read_bytes() != second[k].read_bytes()]:
        raise Failed(f"built twice, other bytes: {', '.join(other)}")
    return first


def snippet() -> str:
    """Returns README's first Python snippet about optimising and gradients."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    return next(b for b in blocks if "onnxgrad.optimize(" in b and "onnxgrad.gradient(" in b)


def try_it(python: str, archive: Path, scratch: Path) -> str:
    """Installs an archive in a fresh environment and uses it. Returns the installed versions."""
    run(python, "-m", "venv", scratch / "venv")
    bin_ = scratch / "venv" / ("Scripts" if os.name == "nt" else "bin")
    installed = bin_ / "python"
    pip = [installed, "-m", "pip", "-q", "--disable-pip-version-check"]
    wanted = f"{archive}[cpu]"
    run(*pip, "download", "-d", scratch / "packages", wanted, *BUILDS)
    run(*pip, "install", "--no-index", "--find-links", scratch / "packages", wanted)
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
    for page in (ROOT / "onnxgrad" / "help").glob("*.md"):
        title = page.read_text("utf-8").splitlines()[0]
        if title not in run(bin_ / "onnxgrad", "help", page.stem, cwd=scratch):
            raise Failed(f"onnxgrad help {page.stem}: the page is not there")
    package = Path(where.strip()).parent
    for stub in ("py.typed", *(p.relative_to(ROOT / "onnxgrad") for p in ROOT.glob(STUBS))):
        if not (package / stub).is_file():
            raise Failed(f"{stub} is not installed")
    versions = run(bin_ / "onnxgrad", "doctor", cwd=scratch)
    found = dict(line.split()[:2] for line in versions.splitlines() if len(line.split()) == 2)
    return ", ".join(f"{p} {found.get(p, '?')}" for p in ("python", "onnx", "numpy", "onnxruntime"))


def main() -> int:
    """Builds, tries, and prints a line for each environment. Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", nargs="*", metavar="PYTHON", default=[sys.executable])
    parser.add_argument("--only", choices=("wheel", "sdist"), help="default: both")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put the archives there")
    args = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            archives = build_twice(Path(folder))
        except Failed as error:
            print(f"FAILED: {error}")
            return 1
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
        if args.keep and not failures:
            args.keep.mkdir(parents=True, exist_ok=True)
            for archive in archives.values():
                print(f"kept {shutil.copy(archive, args.keep)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
