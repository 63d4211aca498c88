"""What `--html FILE` asks for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from onnxgrad.cli.output import Output


def write_html(args: argparse.Namespace, made: Callable[[], str], out: Output) -> None:
    """Make the page and write it, whole or not at all, where --html asks for it. Raises
    InputError.
    """
    if args.html is None:
        return
    with out.progress(Path(args.html).name, 1) as advance:
        advance("drawing", None)
        text = made()
    out.write("--html", args.html, text)
