"""The output of a command: results on stdout, messages and progress on stderr, tables by rich."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from onnxgrad.cli.parser import complaint, fitted
from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.report.parts import Part
from onnxgrad.report.rendering import WIDTH, rich_of
from onnxgrad.wording import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

_LINE = 100  # columns of running text on wider terminals
_FILES = 6  # names of written files shown without -v
_PATIENCE = 1.0  # seconds of work before a progress bar appears
# variables that make rich treat a stream as a terminal
_TERMINALS = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS")


def _console(stream: Any, color: str) -> Console:
    # imported here: it is slow, and a quiet command prints nothing
    from rich.console import Console as RichConsole

    class BrokenPipeRaises(RichConsole):
        def on_broken_pipe(self) -> None:
            """Raises, so that `main` reports that stdout is closed; rich would exit with 1."""
            raise BrokenPipeError

    plain = color == "never" or (color == "auto" and bool(os.environ.get("NO_COLOR")))
    console = BrokenPipeRaises(
        file=stream,
        force_terminal=True if color == "always" else None,
        color_system=None if plain else "auto" if color == "auto" else "truecolor",
        no_color=plain,
        markup=False,
        emoji=False,
        highlight=False,
    )
    if not stream.isatty() and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


def stdout_for_data(option: str) -> BinaryIO:
    """Returns stdout for the data of `option`. Raises InputError if it is closed."""
    if getattr(sys.stdout, "name", "") == os.devnull:  # see `cli.process.open_streams`
        raise InputError(f"{option}: stdout is closed")
    return sys.stdout.buffer


class Output:
    """The streams of one run. With `--json -` or `-o -`, stdout is reserved for that output; tables
    are then dropped, or printed on stderr.
    """

    def __init__(
        self,
        *,
        color: str = "auto",
        quiet: bool = False,
        verbose: bool = False,
        json: str | None = None,
        binary: bool = False,
    ) -> None:
        if binary and json == "-":
            raise InputError("-o - and --json - both want stdout; write one of them to a file")
        self.verbose = verbose
        self._json = json
        self._silent = quiet or json == "-"
        self._color, self._quiet = color, quiet
        self._streams = sys.stderr, sys.stderr if binary else sys.stdout
        self._written: dict[str, None] = {}
        if json == "-":
            stdout_for_data("--json -")

    @cached_property
    def errors(self) -> Console:
        """The console of stderr."""
        return _console(self._streams[0], self._color)

    @cached_property
    def results(self) -> Console:
        """The console of the results."""
        errors, results = self._streams
        return self.errors if results is errors else _console(results, self._color)

    @cached_property
    def _bar(self) -> bool:
        """Whether there may be a progress bar."""
        asked = self._color == "always" or any(name in os.environ for name in _TERMINALS)
        if self._quiet or not (asked or self._streams[0].isatty()):
            return False
        return self.errors.is_terminal

    def show(self, *parts: Part) -> None:
        """Prints results."""
        if not self._silent:
            for part in parts:
                self.results.print(rich_of(part))

    def note(self, text: str) -> None:
        """Prints a line on stderr, unless quiet."""
        if not self._silent:
            self.errors.print(printable(text), style="dim", soft_wrap=True)

    def complain(self, text: str) -> None:
        """Prints an error that does not end the run as one line on stderr."""
        print(fitted(complaint(text), sys.stderr), file=sys.stderr)

    def aside(self, text: str) -> None:
        """Prints requested text on stderr, unwrapped."""
        print(printable_lines(text), file=sys.stderr)

    def commands(self, lines: Iterable[str]) -> None:
        """Prints lines for a build server on stderr, unwrapped."""
        for line in lines:
            print(line, file=sys.stderr)

    def text(self, text: str) -> None:
        """Prints text unwrapped."""
        if not self._silent:
            print(printable_lines(text), file=self._streams[1])

    def markdown(self, text: str) -> None:
        """Prints Markdown: rendered on a terminal, as source elsewhere."""
        if not self.results.is_terminal:
            self.text(text.rstrip("\n"))
        elif not self._silent:
            from rich.markdown import Markdown  # slow to import, and rarely needed
            from rich.theme import Theme

            # uses the terminal's colours and background
            rendered = Markdown(text, code_theme="ansi_dark", hyperlinks=False)
            with self.results.use_theme(Theme({"markdown.code": "cyan"})):
                self.results.print(rendered, width=min(self.results.width, _LINE))

    def json(self, data: dict[str, Any] | Callable[[], dict[str, Any]]) -> None:
        """Writes `data`, or the result of calling it, to the file of --json, completely or not at
        all.
        """
        if self._json is None:
            return
        text = printable_json(data() if callable(data) else data)
        if self._json == "-":
            print(text, file=sys.stdout)
        else:
            self.write("--json", self._json, text + "\n")

    def write(self, option: str, file: str, text: str) -> None:
        """Writes the text to the file of an option, completely or not at all. Raises InputError."""
        try:
            write_whole(Path(file), text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise InputError(
                f"{option} {file}: cannot be written: {error.strerror or error}"
            ) from error
        self.wrote(file)

    def wrote(self, *files: str | Path | None) -> None:
        """Remembers files that a command wrote; None is stdout and is not listed."""
        self._written.update(dict.fromkeys(str(file) for file in files if file is not None))

    def finish(self) -> None:
        """Prints the names of the written files."""
        files = list(map(printable, self._written))
        if len(files) > _FILES and not self.verbose:
            files = [*files[:_FILES], f"{len(files) - _FILES} more (-v)"]
        if files:
            self.text(f"wrote {', '.join(files)}")

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Callable[[str, float | None], None]]:
        """Shows a bar on stderr for work of over a second. Yields `advance(what, done or None)`.

        If stderr is not a terminal there is no bar, and -v prints a line for each stage.
        """
        if not self._bar:
            yield lambda what, _: self._stage(title, what)
            return
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(30),
            TimeElapsedColumn(),
            console=self.errors,
            transient=True,
        )
        steps, pulse = (
            bar.add_task(printable(title), total=total),
            bar.add_task("", total=None, visible=False),
        )

        def advance(what: str, completed: float | None) -> None:
            described = printable(f"{title}: {what}")
            known = completed is not None
            # the bar pulses if the share is unknown, and is full only at the end
            bar.update(
                steps,
                description=described,
                visible=known,
                completed=min(completed or 0, 0.99 * total),
            )
            bar.update(pulse, description=described, visible=not known)

        timer = threading.Timer(_PATIENCE, bar.start)
        timer.daemon = True
        timer.start()
        try:
            yield advance
        finally:
            timer.cancel()
            timer.join()
            bar.stop()

    def _stage(self, title: str, what: str) -> None:
        if self.verbose:
            self.note(f"{title}: {what}")
