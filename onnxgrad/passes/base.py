"""The base of passes: a name, a law in the docstring, options as dataclass fields, and `run`.

Every module of this folder registers its passes. `rule_pass` declares a pass that lists rewrite
rules, `family_pass` one over families of parallel branches. Other passes are programs.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar

from onnxgrad.extensions import built_in, plugged
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.options import Declared, Range, check_fields, known_keywords
from onnxgrad.rewrite.combine import Branch, Family, apply_family
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import Rule, apply_rules

# types of options that several passes share; `vocabulary` has their words for the command line
Merge = Literal["always", "auto", "never"]
Provider = Literal["cpu", "cuda"]
Count = Annotated[int, Range(0)]


@dataclass(frozen=True)
class Pass(metaclass=Declared):
    """A named transformation of a program. Subclasses are dataclasses whose fields are the
    pass's options, each checked against its declared type. Raises InputError.

    `run(program, trace)` rewrites the program in place and calls `trace.fired(law, place)` for each
    rewrite. A list of passes accepts any Pass; `passes="..."` accepts the names of registered ones.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class DropDocs(onnxgrad.Pass):
    ...     '''Remove the doc strings of nodes.'''
    ...     name = "drop-docs"
    ...     def run(self, program, trace):
    ...         for binding in program.main.bindings:
    ...             if binding.node.doc_string:
    ...                 trace.fired("drop_docs", str(binding))
    ...                 binding.node.doc_string, binding.changed = "", True
    ...                 program.main.touch()
    >>> done = onnxgrad.optimize("models/training/mlp.onnx", passes=[DropDocs()], report=True)
    >>> {r.pass_name for r in done.rewrites} <= {"drop-docs"}
    True
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self, f"pass '{self.name}'")

    @abstractmethod
    def run(self, program: Program, trace: Trace) -> None:
        """Transforms `program` in place, recording every rewrite in `trace`."""

    def stated(self, model: Any, trace: Trace, provider: str) -> Any:
        """The reference model for verification: by default the input `model`. Override it if the
        pass adds outputs.
        """
        return model

    def proved(self, program: Program) -> None:  # most passes need nothing here
        """Removes parts that only the proof of the result needed. Called once the result is proved,
        and also if there is no proof.
        """

    @classmethod
    def law(cls) -> str:
        """Returns the first paragraph of the docstring, on one line."""
        return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


@dataclass(frozen=True)
class RulePass(Pass):
    """Applies rewrite rules in every block until none matches.

    >>> from dataclasses import dataclass
    >>> from onnxgrad import P, capture, op, register, rewrite
    >>> x = capture("x")
    >>> @rewrite(P.Abs(P.Neg(x)))
    ... def abs_of_neg(x):
    ...     '''Abs(Neg(x)) = Abs(x)'''
    ...     return op.Abs(x)
    >>> @register
    ... @dataclass(frozen=True)
    ... class SimplerAbs(onnxgrad.RulePass):
    ...     '''Abs(Neg(x)) = Abs(x).'''
    ...     name = "simpler-abs"
    ...     laws = [abs_of_neg]
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { n = Neg (x)  y = Abs (n) }''')
    >>> done = onnxgrad.optimize(model, passes="simpler-abs,remove-unused", report=True)
    >>> [r.rule for r in done.rewrites]
    ['abs_of_neg']
    """

    # whether the rules compute new floating-point constants, which are rounded
    rounds: ClassVar[bool] = False

    @property
    @abstractmethod
    def laws(self) -> Sequence[Rule]:
        """The rules, in the order in which they are tried at a binding."""

    def run(self, program: Program, trace: Trace) -> None:
        """Applies the rules in every block until none matches."""
        trace.rounding = self.rounds
        try:
            for block in roots(program):
                if apply_rules(block, self.laws, trace) and self.rounds:
                    trace.rounded = True
        finally:
            trace.rounding = False


Check = Callable[[list[Branch]], bool]


@dataclass(frozen=True)
class FamilyPass(Pass):
    """Combines families of parallel branches: groups of at least `min_branches` branches that
    `check` accepts.
    """

    min_branches: Annotated[int, Range(2)] = 2
    check: Check | None = None

    @property
    @abstractmethod
    def family(self) -> Family:
        """The family, with this pass's options."""

    def follow(self, emitted: Sequence[Binding], trace: Trace) -> None:
        """Continues from the `emitted` bindings, into which those of a block were combined."""

    def run(self, program: Program, trace: Trace) -> None:
        """Combines every group in every block."""
        family = replace(self.family, accepts=self.check)
        for block in roots(program):
            self.follow(apply_family(block, family, trace, self.min_branches), trace)


def roots(program: Program) -> list[BindingBlock]:
    """The outermost blocks: the main graph and every function body."""
    return [program.main, *program.functions.values()]


PASSES: dict[str, type[Pass]] = {}


def all_passes() -> dict[str, type[Pass]]:
    """Returns the registered passes. Imports all of onnxgrad first, because some passes, such as
    those of gradients, are registered outside of this folder.
    """
    import_module("onnxgrad.surface")
    for name in built_in("passes"):
        PASSES.setdefault(name, plugged("passes", name))
    return PASSES


_P = TypeVar("_P", bound=type[Pass])


@known_keywords
def register(cls: _P) -> _P:
    """Registers a pass, so that `passes="..."` accepts its name."""
    PASSES[cls.name] = cls
    return cls


_O = ParamSpec("_O")


def rule_pass(
    rounds: bool = False,
) -> Callable[[Callable[_O, Sequence[Rule]]], Callable[_O, RulePass]]:
    """Declares a `RulePass` by a function from its options to its rules.

    The pass takes its name, its options and its law from the function's name, keywords and
    docstring. `rounds`: the rules compute new floating-point constants, which are rounded.
    """
    return lambda choose: _declared(choose, RulePass, "laws", rounds=rounds)


def family_pass(
    follow: Callable[[Sequence[Binding], Trace], None] | None = None,
) -> Callable[[Callable[_O, Family]], Callable[_O, FamilyPass]]:
    """Declares a `FamilyPass` by a function from its options to its family, as `rule_pass` does.

    `follow` is called with the bindings that were emitted for a block.
    """
    more = {"follow": lambda self, emitted, trace: follow(emitted, trace)} if follow else {}
    return lambda choose: _declared(choose, FamilyPass, "family", **more)


def _declared(choose: Callable[..., Any], base: Any, answers: str, **members: Any) -> Any:
    """Returns a registered dataclass. Its fields are the keywords of `choose`, and its property
    `answers` returns the result of `choose` for them.
    """
    options = inspect.signature(choose).parameters
    members |= {
        "name": choose.__name__.replace("_", "-"),
        "__doc__": choose.__doc__,
        "__module__": choose.__module__,  # where pickle and get_type_hints look
        "__annotations__": {name: p.annotation for name, p in options.items()},
        **{name: p.default for name, p in options.items()},
        answers: property(lambda self: choose(**{name: getattr(self, name) for name in options})),
    }
    cls: Any = type(base)(choose.__name__, (base,), members)
    return register(frozen(cls) if options else cls)
