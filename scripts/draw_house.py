"""Draws the picture in ARCHITECTURE.md: the folders of the package in layer order, and the imports
between them.

    python scripts/draw_house.py                         # writes scripts/results/house.svg

A room is a folder of onnxgrad/. An arc means that modules of the upper room import modules of the
lower one; its width grows with their number. Imports for types only count as well. A test draws the
picture again and compares. Files over 450 lines and folders of more than 24 files are printed: look
for a seam, but none is better than a wrong one.
"""

from __future__ import annotations

import ast
import html
import math
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "onnxgrad"
PICTURE = ROOT / "scripts" / "results" / "house.svg"
LINES, FILES = 450, 24  # above these, sizes are printed
ROW, LEFT, BOX, WIDTH = 34, 10, 250, 560
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1c2024 }
  .soft { font-size: 11px; fill: #59636e } rect { fill: #eef3f8; stroke: #9fb3c8 }
  path { fill: none; stroke: #3b6ea5; stroke-opacity: .45 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e3e6ea } .soft { fill: #9aa5b1 } rect { fill: #1f2933; stroke: #52606d }
    path { stroke: #7ab8ff }
  }
"""


def room(parts: tuple[str, ...]) -> str | None:
    """Returns the folder directly below the package, or None for a module of the package itself."""
    return parts[0] if len(parts) > 1 else None


def imported(path: Path) -> set[str]:
    """Returns the rooms from which a module imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "onnxgrad" and len(parts) > 2 and (PACKAGE / parts[1]).is_dir():
                found.add(parts[1])
    return found


def rooms(layers: list[str]) -> tuple[dict[str, list[int]], Counter[tuple[str, str]]]:
    """Returns the numbers of files and lines of each room, the highest layer first, and for each
    pair of rooms how many modules of one import the other.
    """
    sizes: dict[str, list[int]] = {}
    arrows: Counter[tuple[str, str]] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = room(path.relative_to(PACKAGE).parts)
        if name is None:
            continue
        size = sizes.setdefault(name, [0, 0])
        size[0] += 1
        size[1] += len(path.read_text(encoding="utf-8").splitlines())
        arrows.update((name, other) for other in imported(path) - {name})
    order = sorted(sizes, key=layers.index, reverse=True)
    return {name: sizes[name] for name in order}, arrows


def picture(layers: list[str]) -> str:
    """Returns the picture as SVG. `layers`: modules and folders of the package, lowest first."""
    sizes, arrows = rooms(layers)
    middle = {name: ROW * i + ROW // 2 + 4 for i, name in enumerate(sizes)}
    parts = []
    for (above, below), count in sorted(arrows.items()):
        top, bottom = middle[above], middle[below]
        reach = LEFT + BOX + 18 * math.sqrt(abs(bottom - top))
        x = LEFT + BOX
        parts.append(
            f'<path d="M{x} {top} C{reach:.0f} {top} {reach:.0f} {bottom} {x} {bottom}" '
            f'stroke-width="{0.6 + math.log2(count):.1f}"><title>{above} imports {below} '
            f"({count} modules)</title></path>"
        )
    for name, (files, lines) in sizes.items():
        y = middle[name]
        parts.append(
            f'<rect x="{LEFT}" y="{y - 13}" width="{BOX}" height="26" rx="5"/>'
            f'<text x="{LEFT + 10}" y="{y + 5}">{html.escape(name)}/</text>'
            f'<text class="soft" x="{LEFT + BOX - 10}" y="{y + 4}" text-anchor="end">'
            f"{files} file{'s' * (files > 1)}, {round(lines, -2):,} lines</text>"
        )
    height = ROW * len(sizes) + 8
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}"><style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def sizes() -> list[str]:
    """Returns the long files and the full folders, each with its size."""
    files = sorted(PACKAGE.rglob("*.py"))
    lines = {f.relative_to(ROOT): len(f.read_text("utf-8").splitlines()) for f in files}
    folders = Counter(f.parent.relative_to(ROOT) for f in files)
    return [
        *(f"{path}: {n} lines" for path, n in lines.items() if n > LINES),
        *(f"{path}: {n} files" for path, n in folders.items() if n > FILES),
    ]


def main() -> int:
    """Draws the picture and prints sizes."""
    sys.path.insert(0, str(ROOT))
    from tests.test_architecture import LAYERS  # the order is defined by the test that enforces it

    PICTURE.write_text(picture(LAYERS), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}", *sizes(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
