"""The page around the data: one file that loads nothing, and in which no text of a model can run.

The data is JSON in a script element that browsers do not run, with every character escaped that
could end it; our scripts make elements and text of it, never markup. The page's own policy allows
the scripts and styles that it came with, by their digests, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from onnxgrad.version import __version__
from onnxgrad.wording import printable

_SCRIPTS = (
    "vendor/d3-dispatch.min.js",
    "vendor/d3-selection.min.js",
    "vendor/d3-color.min.js",
    "vendor/d3-interpolate.min.js",
    "vendor/d3-timer.min.js",
    "vendor/d3-ease.min.js",
    "vendor/d3-drag.min.js",
    "vendor/d3-transition.min.js",
    "vendor/d3-zoom.min.js",
    "vendor/dagre.min.js",
    "vendor/uPlot.min.js",
    "assets/dom.js",
    "assets/model.js",
    "assets/layout.js",
    "assets/drawing.js",
    "assets/details.js",
    "assets/graph.js",
    "assets/plots.js",
    "assets/sections.js",
    "assets/main.js",
)
_STYLES = ("vendor/uPlot.min.css", "assets/page.css", "assets/graph.css")
_LICENSES = ("d3", "d3-ease", "dagre", "uPlot")


def page(title: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """The whole page; each report is a title, a verdict, cards and sections in JSON's types. The
    same reports give the same text.
    """
    scripts = [_asset(name) for name in _SCRIPTS]
    styles = [_asset(name) for name in _STYLES]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_digest, scripts))}",
            f"style-src {' '.join(map(_digest, styles))}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    data = {"version": __version__, "reports": list(reports), "licenses": _licenses()}
    shown = html.escape(printable(title))
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{shown}</title>",
            *(f"<style>{text}</style>" for text in styles),
            "</head>",
            "<body>",
            f"<noscript>{shown}: this page is drawn by JavaScript, which is turned off.</noscript>",
            '<main id="page"></main>',
            f'<script type="application/json" id="data">{embedded(data)}</script>',
            *(f"<script>{text}</script>" for text in scripts),
            "</body>",
            "</html>",
            "",
        )
    )


def embedded(data: object) -> str:
    """JSON that may stand inside a script element: ASCII alone, nothing that HTML reads."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode()}'"


@cache
def _asset(name: str) -> str:
    """A script or style of the package, without the reference to a map that is not there."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if "sourceMappingURL" not in line)


def _licenses() -> list[list[str]]:
    folder = resources.files(__package__).joinpath("vendor")
    return [
        [name, folder.joinpath(f"{name}.LICENSE").read_text(encoding="utf-8").strip()]
        for name in _LICENSES
    ]
