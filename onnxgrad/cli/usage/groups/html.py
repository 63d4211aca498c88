"""`--html`."""

from __future__ import annotations

import argparse


def add_html(parser: argparse._ActionsContainer) -> None:
    """The option."""
    parser.add_argument(
        "--html", metavar="FILE", help="write a page to look at: one file, which needs no network"
    )
