"""Before a deployment: a model is exported, misses its budget, is fixed, and is inspected.

    python scripts/examples/days/deploy.py

The classifier comes from torch if that is installed, else from models/mobilenet_v2.raw.onnx, which
torch.onnx wrote. onnxgrad.toml lists the models and their requirements. With the preset `clean`
every BatchNormalization stays, and `onnxgrad ci` reports it; `default` folds them. The results are
stored in onnxgrad.lock.json, which is committed. All files are written to the working folder, and
report.html opens in a browser.
"""

import importlib.util
import shutil
import subprocess
import sys
import webbrowser
from pathlib import Path


def export(path):
    """A classifier with BatchNormalization behind its convolutions."""
    if importlib.util.find_spec("torch") is None:
        shutil.copy(Path(__file__).parents[3] / "models" / "mobilenet_v2.raw.onnx", path)
        return
    import torch
    from torch import nn

    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(30))
    net = nn.Sequential(block, nn.Flatten(), nn.Linear(8, 10)).eval()
    torch.onnx.export(net, (torch.zeros(1, 3, 32, 32),), path, dynamo=True, optimize=False)


def recipe(preset):
    """Writes the recipe: the models, their preset and their requirements."""
    Path("onnxgrad.toml").write_text(
        f'preset = "{preset}"\n'
        'require = { BatchNormalization = 0, bytes = "<= -10%" }\n'
        '[ci]\nmodels = ["classifier.onnx"]\nout = "build/{name}.onnx"\n'
    )


def onnxgrad(*words):
    """Runs a command as a build would, and returns its exit code."""
    print("$ onnxgrad", *words, flush=True)
    return subprocess.run([sys.executable, "-m", "onnxgrad", *words], check=False).returncode


export("classifier.onnx")
recipe("clean")
missed = onnxgrad("ci")
recipe("default")
mended = onnxgrad("ci", "--update")
# without --all, a model that nothing changed is not run again, and its page is short
passed = onnxgrad("ci", "--all", "--html", "report.html")
webbrowser.open(Path("report.html").resolve().as_uri())
