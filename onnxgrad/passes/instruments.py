"""Instruments of a pipeline: skip passes, and print the program after passes that changed it.

Names of passes are globs such as `combine-*`. A glob that matches no pass is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.name_lists import names_among
from onnxgrad.options import several
from onnxgrad.passes.base import PASSES, Pass, all_passes
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.wording import nearest, option


def leave_out(pipeline: Pipeline, patterns: Sequence[str]) -> Pipeline:
    """The pipeline without the passes that match a pattern, which may match `inline` too.

    Raises InputError if a pattern matches no pass, or if no pass is left to run.
    """
    names = [p.name for p in pipeline.passes]
    patterns = names_among(patterns, names, option("--without", "without"))
    _check(patterns, pipeline.passes, option("--without", "without"))
    left = [p for p in pipeline.passes if not any(fnmatchcase(p.name, one) for one in patterns)]
    if not left and patterns:
        raise InputError(
            f"{option('--without', 'without')} {' '.join(patterns)}: no pass is left to run"
        )
    return Pipeline(tuple(left))


@dataclass
class PrintAfter:
    """`--print-after PASS` and `--print-after PASS=DIR`: as the `on_fired` of `Pipeline.run`, shows
    each program that a pass changed, or writes it to a numbered file.
    """

    wanted: Sequence[tuple[str, Path | None]]
    show: Callable[[str], None]
    _seen: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(
        texts: Sequence[str], pipeline: Pipeline, show: Callable[[str], None]
    ) -> PrintAfter | None:
        """Returns the instrument for texts `PASS` and `PASS=DIR`; None if there are none.

        Raises InputError if a pass does not exist, if `pipeline` does not run it, or if a folder
        cannot be created.
        """
        own = option("--print-after", "print_after")
        given = [
            name  # a folder may have commas in its name
            for text in several(texts, own)
            for name in ([text] if "=" in text else names_among(text, (), own))
        ]
        parts = [text.partition("=") for text in given]
        _check([name for name, _, _ in parts], pipeline.passes, own)
        for name, equals, folder in parts:
            if not any(fnmatchcase(p.name, name) for p in pipeline.passes):
                raise InputError(f"{own} {name}: this pipeline has no such pass")
            if equals:
                _make(folder, f"{own} {name}={folder}")
        wanted = [(name, Path(folder) if equals else None) for name, equals, folder in parts]
        return PrintAfter(wanted, show) if wanted else None

    def __call__(self, name: str, program: Program) -> None:
        """Prints `program`, which the pass `name` has just changed."""
        for pattern, folder in self.wanted:
            if fnmatchcase(name, pattern):
                self._print(name, program, folder)

    def _print(self, name: str, program: Program, folder: Path | None) -> None:
        text = program.text()
        if folder is None:
            self.show(f"# after {name}\n{text}\n")
            return
        stem = "model" if program.path is None else program.path.stem
        number = self._seen[stem] = self._seen.get(stem, 0) + 1
        path = folder / f"{stem}.{number:03}.{name}.txt"
        try:
            write_whole(path, f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            own, why = option("--print-after", "print_after"), error.strerror or error
            raise InputError(f"{own}: {path} cannot be written: {why}") from error


def _check(patterns: Iterable[str], passes: Iterable[Pass], own: str) -> None:
    """Raises InputError for a pattern that matches no registered pass and none of `passes`."""
    own_passes = [p.name for p in passes]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in (*PASSES, *own_passes)):
            known = sorted({*all_passes(), *own_passes})
            if any(fnmatchcase(name, pattern) for name in known):
                continue
            begun = any(name.startswith(pattern) for name in known)
            near = [f"{pattern}*"] if begun else nearest(pattern, known)
            hint = f"did you mean '{near[0]}'?" if near else "`onnxgrad passes` lists them"
            raise InputError(f"{own}: unknown pass '{pattern}': {hint}")


def _make(folder: str, own: str) -> None:
    if not folder:
        raise InputError(f"{own}: the name of the folder is empty")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{own}: cannot be made: {error.strerror or error}") from error
