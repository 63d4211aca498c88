"""What a notebook shows of a model, a block and whatever else is text: HTML that stands alone."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onnxgrad.wording import printable_lines

if TYPE_CHECKING:
    from onnxgrad.ir.program import Program
    from onnxgrad.ir.var import Var

_LINES = 40  # of a block
_WIDEST = 400  # characters of a line


def text_html(text: str) -> str:
    """Text as it is, its beginning where it is long."""
    lines = text.splitlines()
    shown = [line if len(line) <= _WIDEST else f"{line[:_WIDEST]}..." for line in lines[:_LINES]]
    if len(lines) > _LINES:
        shown.append(f"... and {len(lines) - _LINES:,} more lines")
    return f'<pre class="onnxgrad">{_escaped(chr(10).join(shown))}</pre>'


def program_html(program: Program) -> str:
    """A model: its name, its size, its inputs and outputs."""
    main = program.main
    name = program.path.name if program.path is not None else main.name or "model"
    count = sum(1 for _ in main.walk())
    facts = f"{count:,} nodes, {len(main.initializers):,} initializers, opset {program.opset}"
    inputs = [v for v in main.inputs if v.initializer is None]
    rows = [*_rows("input", inputs), *_rows("output", main.outputs)]
    return (
        f'<div class="onnxgrad"><b>{_escaped(name)}</b> <span style="opacity:.65">{facts}</span>'
        f"<table>{''.join(rows)}</table></div>"
    )


def _rows(kind: str, values: Iterable[Var]) -> Iterable[str]:
    values = list(values)
    for v in values[:_LINES]:
        cells = (kind, v.name[:_WIDEST], str(v.type or "?")[:_WIDEST])
        yield f"<tr>{''.join(map(_cell, cells))}</tr>"
    if len(values) > _LINES:
        yield f"<tr><td>{kind}</td><td>and {len(values) - _LINES:,} more</td></tr>"


def _cell(text: str) -> str:
    return f'<td style="text-align:left">{_escaped(text)}</td>'


def _escaped(text: str) -> str:
    """Text that is neither markup nor control."""
    return html.escape(printable_lines(text))
