"""Refuses merged products whose weights enlarge the file."""

from __future__ import annotations

from collections.abc import Callable

from onnxgrad.errors import NotProved
from onnxgrad.ir.program import Program
from onnxgrad.passes.folded_values import constant_bytes
from onnxgrad.passes.pipeline import Fired, Pipeline
from onnxgrad.wording import option


class Grown(NotProved):
    """Merging all parallel products would store so many weights twice that the file grows by more
    than a tenth.
    """

    def __init__(self, growth: int, size: int) -> None:
        self.growth = growth
        super().__init__(
            f"merging always grows the file by {growth:,} bytes ({growth / max(size, 1):.0%}), "
            "because merged weights have other readers: allow it with "
            f"{option('--allow-growth', 'allow_growth=True')}, or merge auto; nothing was written"
        )


# the share that merging may add to a file by default
MOST_GROWTH = 0.1


class Merged:
    """Counts the bytes by which passes that always merge enlarge the constants; forwards the
    events.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        program: Program,
        on_stage: Callable[[str], None],
        on_fired: Fired | None,
    ) -> None:
        self.names = {p.name for p in pipeline.passes if getattr(p, "merge", None) == "always"}
        self.program, self.on_stage, self.on_fired = program, on_stage, on_fired
        self.at_first = constant_bytes(program) if self.names else 0
        self.before = self.added = 0

    def growth(self) -> int:
        """Returns the bytes that merging added and no other pass removed."""
        if self.added <= 0:
            return 0
        return min(self.added, constant_bytes(self.program) - self.at_first)

    def stage(self, name: str) -> None:
        self.on_stage(name)
        if name in self.names:
            self.before = constant_bytes(self.program)

    def fired(self, name: str, program: Program) -> None:
        if name in self.names:
            self.added += constant_bytes(program) - self.before
        if self.on_fired is not None:
            self.on_fired(name, program)
