"""`python -m onnxgrad`, and the console script `onnxgrad`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onnxgrad.cli import app
from onnxgrad.cli.process import leave
from onnxgrad.startup import IS_PROGRAM


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; the program `onnxgrad` ends with it."""
    code = app.main(argv)
    if IS_PROGRAM and argv is None:
        leave(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
