"""`python -m onnxgrad`, and the console script `onnxgrad`."""

from __future__ import annotations

import sys

from onnxgrad.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
