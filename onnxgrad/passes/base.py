"""What a pass is: a name, a law in its docstring, options as dataclass fields, and `run`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.rewrite.trace import Trace


@dataclass(frozen=True)
class Pass(ABC):
    """A named transformation of a program. Subclasses are dataclasses whose fields are the pass's options."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, program: Program, trace: Trace) -> None:
        """Transform `program` in place, recording every firing in `trace`."""

    def stated(self, model: Any, trace: Trace, provider: str) -> Any:
        """What the proof compares the result with, where `model` was given: that, for a pass that adds no output."""
        return model

    @classmethod
    def law(cls) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(cls) or "").split("\n")[0]


def roots(program: Program) -> list[BindingBlock]:
    """The outermost blocks: the main graph and every function body."""
    return [program.main, *program.functions.values()]


def nested(root: BindingBlock) -> list[BindingBlock]:
    """The blocks inside a block, at any depth, outer ones first."""
    return [inner for b in root.walk() for inner in b.blocks.values()]


PASSES: dict[str, type[Pass]] = {}

_P = TypeVar("_P", bound=type[Pass])


def register(cls: _P) -> _P:
    """Make a pass available by its name."""
    PASSES[cls.name] = cls
    return cls
