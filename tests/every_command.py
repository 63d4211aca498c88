"""Every command once, in a folder and a home of its own: whose code runs, and which files are left.

`run_all(program, folder, home)` starts real processes, as a user does who found a model somewhere.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx

from tests.helpers import ROOT, parse
from tests.train.common import classifier, examples

RECIPE = """
[ci]
models = ["m.onnx", "n.onnx"]
out = "built/{name}.onnx"
"""
PLUGIN = "import onnxruntime\n"  # whose telemetry is off there too
# matplotlib is an extra; it would leave a cache at home
PLOT = " --plot loss.png" if importlib.util.find_spec("matplotlib") else ""
# words -> what they write
COMMANDS: dict[str, set[str]] = {
    "verify m.onnx m.onnx --layers --save run.npz": {"run.npz"},
    "optimize m.onnx -o o.onnx --html o.html --plugin plugin.py": {"o.onnx", "o.html"},
    "ci --jobs 2 --update": {"built/m.onnx", "built/n.onnx", "onnxgrad.lock.json"},
    "reduce n.onnx --fails 'verify {} m.onnx' -o r.onnx": {"r.onnx"},
    "grad m.onnx -o g.onnx --target logits --adjoint input": {"g.onnx"},
    "check-grad n.onnx": set(),
    "train-step m.onnx -o step --loss cross_entropy": {
        f"step/{name}" for name in ("train.onnx", "eval.onnx", "predict.onnx", "state.safetensors", "manifest.json")
    },
    "fit m.onnx --loss cross_entropy --data data.npz --validation data.npz --steps 2 --threads 1 "
    "--folder run": {"run/checkpoint.safetensors"},
    "fit m.onnx --loss cross_entropy --data data.npz --steps 2 --threads 1 --engine graph "
    f"-o t.onnx{PLOT}": {"t.onnx", *(["loss.png"] if PLOT else [])},
    "run m.onnx --save f.npz": {"f.npz"},
    "inspect m.onnx": set(),
    "convert-opset m.onnx --to 20 -o c.onnx": {"c.onnx"},
    "float16 m.onnx -o h.onnx": {"h.onnx"},
    "extract m.onnx --outputs h -o e.onnx": {"e.onnx"},
    "open-batch b.onnx -o x.onnx": {"x.onnx"},
    "vmap b.onnx -o v.onnx": {"v.onnx"},
    "edit m.onnx --rename h=hidden --bind x=stored.npz -o i.onnx": {"i.onnx"},
    "lora m.onnx --targets w1 --rank 1 -o a.onnx": {"a.onnx"},
    "lift w.onnx --weights w --prepare k.onnx -o l.onnx": {"k.onnx", "l.onnx"},
    "preprocess m.onnx --after logits=argmax -o q.onnx": {"q.onnx"},
    "join b.onnx b.onnx --map y=x --prefix second_ -o j.onnx": {"j.onnx"},
    "metadata m.onnx --set author=me -o d.onnx": {"d.onnx"},
    "diff m.onnx n.onnx": set(),
    "bench m.onnx --rounds 2 --seconds 0.05": set(),
    "place m.onnx --device cuda=* -o p.onnx": {"p.onnx"},
    "passes": set(),
    "ops": set(),
    "completion bash": set(),
    "doctor": set(),
    "help start": set(),
}  # fmt: skip


def installed_modules(python: str = sys.executable) -> list[str]:
    """The names of all top-level modules that a command may import in this `python`: Python's own,
    those of every installed package, and some that are looked for without being there.
    """
    code = (
        "import sys; from importlib.metadata import packages_distributions as installed\n"
        "print(*sys.stdlib_module_names, *installed(), *sys.modules)"
    )
    printed = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    extra = {"cupy", "tensorrt", "onnxruntime_extensions", "sitecustomize", "usercustomize"}
    names = extra.union(printed.stdout.split(), sys.modules)
    # an editable install of this package is no module of a stranger
    return sorted(
        n for n in names if n.isidentifier() and n not in ("onnxgrad", "tests", "scripts")
    )


def plant(folder: Path, names: Iterable[str]) -> Path:
    """A module of each name that writes its name to a file, which is returned, when it is run."""
    mark = folder.parent / "ran"
    for name in names:
        (folder / f"{name}.py").write_text(
            f"open({str(mark)!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r})\n"
        )
    return mark


def prepare(folder: Path) -> None:
    """The models, data and recipe that COMMANDS name."""
    folder.mkdir()
    model = classifier()
    onnx.save(model, folder / "m.onnx")
    onnx.save(parse("g (float[N] x) => (float y) { a = Exp(x) y = ReduceSum<keepdims = 0>(a) }"),
              folder / "n.onnx")  # fmt: skip
    onnx.save(parse("g (float[N,2] x, float[2] w) => (float[N,2] y) { e = Exp(w) y = Mul(x, e) }"),
              folder / "w.onnx")  # fmt: skip
    onnx.save(parse("g (float[1,3] x) => (float[1,3] y) { y = Exp(x) }"), folder / "b.onnx")
    np.savez(folder / "data.npz", **examples(40))
    np.savez(
        folder / "stored.npz", x=np.zeros((2, 8), np.float32), logits=np.zeros((2, 3), np.float32)
    )
    (folder / "onnxgrad.toml").write_text(RECIPE)
    (folder / "plugin.py").write_text(PLUGIN)
    # matplotlib would read it, and start LaTeX
    (folder / "matplotlibrc").write_text("text.usetex: True\n")


def run(
    program: Sequence[str], words: str, folder: Path, home: Path
) -> subprocess.CompletedProcess[str]:
    """One command in `folder`, with an empty `home`; telemetry is as the user left it."""
    env = {
        k: v
        for k, v in os.environ.items()
        if k != "ORT_DISABLE_TELEMETRY" and not k.startswith("XDG_")
    }
    env |= {"HOME": str(home), "TMPDIR": str(home)}
    return subprocess.run([*program, *shlex.split(words)], cwd=folder, env=env,
                          capture_output=True, text=True, timeout=120)  # fmt: skip


def console_script(folder: Path) -> list[str]:
    """The command as pip installs it, for this Python, installed or not."""
    script = folder / "onnxgrad"
    script.write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\n"
        "from onnxgrad.__main__ import main\nsys.exit(main())\n"
    )
    return [sys.executable, str(script)]


def files_below(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
