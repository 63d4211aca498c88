"""Export the models of tests/data/exporters with exporters other than PyTorch's:
`python scripts/export_others.py EXPORTER [NAME ...] [--out FOLDER]`.

Each EXPORTER needs its own packages (its module in scripts/exporting/ names them in PACKAGES), and
should run in its own environment. A file is written only if onnxruntime and the framework agree.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from pathlib import Path

from exporting.others import write, write_versions

EXPORTERS = {
    "keras": "keras_models",
    "sklearn": "sklearn_models",
    "onnxmltools": "tree_models",
    "jax": "jax_models",
    "paddle": "paddle_models",
}
DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "exporters"


def main(arguments: list[str]) -> int:
    """Exports the named models of one exporter (all by default) and prints one line per file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exporter", choices=EXPORTERS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    module = importlib.import_module(f"exporting.{EXPORTERS[options.exporter]}")
    unknown = [name for name in options.names if name not in module.MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(module.MODELS)})")
    folder = options.out / options.exporter
    for name in options.names or module.MODELS:
        print(write(name, module.MODELS[name](), folder), flush=True)
    write_versions(folder, module.PACKAGES, module.MODELS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
