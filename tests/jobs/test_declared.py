"""An option is declared once: every door has it, and every door refuses a value of another type."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from onnxgrad.cli.app import parser_for
from onnxgrad.cli.commands import completion
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.jobs import recipe
from onnxgrad.jobs.ci.declarations import CiOptions, Gates
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import (
    REQUIRED,
    Declaration,
    add_flags,
    config_of,
    from_flags,
    json_type,
    keys_of,
    option,
    options_of,
    table_of,
)
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.jobs.kinds import InputKind, Names, PerOutput, Sizes
from onnxgrad.jobs.training.declarations import RunOptions
from onnxgrad.options import Range, checked
from scripts import make_stubs

HELP = "how many turtles stand below (default: 3)"


@frozen(kw_only=True)
class More(OptimizeOptions):
    """A copy of the options of `optimize` with one option more."""

    turtles: Annotated[int, Range(1, 9)] = option(3, HELP, metavar="N", toml="verify.turtles")


@frozen(kw_only=True)
class MoreRuns(RunOptions):
    """The same of `Trainer.fit`."""

    turtles: Annotated[int, Range(1, 9)] = option(3, HELP)


@from_keywords(More)
def stand(model: Any, *, options: More, report: bool = False) -> Any:
    """Return how many."""
    return options.turtles


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command has it."""
    monkeypatch.setitem(COMMANDS, "optimize", replace(COMMANDS["optimize"], job=More))
    return ["optimize", "m.onnx"]


def test_python_has_it() -> None:
    assert inspect.signature(stand).parameters["turtles"].default == 3
    assert (stand("m"), stand("m", turtles=4)) == (3, 4)
    assert f"turtles: {HELP}" in str(stand.__doc__)
    text = make_stubs.stub({"stand": stand}, make_stubs.kinds, make_stubs.declarations)
    assert "    turtles: Annotated[int, Range(1, 9)] = 3,\n" in text
    with pytest.raises(InputError, match="optimize: turtles must be a whole number, not 'x'"):
        stand("m", turtles="x")
    with pytest.raises(InputError, match=r"has no option 'turtle' \(did you mean 'turtles'"):
        stand("m", turtle=3)
    with pytest.raises(InputError, match="stand: missing a required argument: 'model'"):
        stand()


class Stack:
    """A class whose methods have declared keywords."""

    @from_keywords(MoreRuns)
    def __init__(self, *, options: MoreRuns, model: Any) -> None:
        """Keep it."""
        self.turtles = options.turtles

    @from_keywords(More)
    def stand(self, model: Any, *, options: More) -> Any:
        """Return how many."""
        return options.turtles


def test_a_class_has_it() -> None:
    """As `Trainer`: its first arguments and its methods."""
    made = Stack({"x": 1}, model="m", turtles=5)
    assert (made.turtles, made.stand("m"), made.stand("m", turtles=4)) == (5, 3, 4)
    assert [*inspect.signature(Stack).parameters][:1] == ["data"]
    text = make_stubs.stub({"Stack": Stack}, make_stubs.kinds, make_stubs.training_declarations)
    assert (
        "class Stack(object):\n    def __init__(\n        self,\n        data: DataLike,\n" in text
    )
    assert text.count("        turtles: Annotated[int, Range(1, 9)] = 3,\n") == 2
    assert f"turtles: {HELP}" in str(Stack.__init__.__doc__)
    with pytest.raises(InputError, match=r"^fit: turtles must be a whole number, not 'x'"):
        Stack([], model="m", turtles="x")
    with pytest.raises(InputError, match=r"^Stack has no option 'turtle' .*; it has data, model"):
        Stack([], turtle=3)
    with pytest.raises(InputError, match=r"^Stack: missing a required argument: 'data'"):
        Stack()
    with pytest.raises(InputError, match=r"^stand has no option 'self'"):
        made.stand(self=3)


def test_the_command_has_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    args = parser_for(words).parse_args([*words, "--turtles", "5"])
    assert from_flags(More, args).turtles == 5 and from_flags(More, args).given == {"turtles"}
    for wrong in ("x", "0", "10", "-1", "1.5"):
        with pytest.raises(InputError, match="--turtles must be "):
            parser_for(words).parse_args([*words, f"--turtles={wrong}"])
    with pytest.raises(SystemExit):
        parser_for(words).parse_args(["optimize", "--help"])
    assert f"--turtles N {HELP}" in " ".join(capsys.readouterr().out.split())


def test_completion_has_it(words: list[str]) -> None:
    completion._table.cache_clear()
    try:
        assert all("--turtles" in completion.SHELLS[s]() for s in ("bash", "zsh"))
        assert "-l turtles" in completion.SHELLS["fish"]()
    finally:
        completion._table.cache_clear()


def test_recipes_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "OPTIONS", keys_of(More))
    monkeypatch.setattr(recipe, "OptimizeOptions", More)
    found = recipe.parse({"verify": {"turtles": 4}}, "r.toml").options("m.onnx", More())
    assert isinstance(found, More) and found.turtles == 4
    with pytest.raises(InputError, match=r"r\.toml: 'verify.turtles' must be a whole number, not"):
        recipe.parse({"verify": {"turtles": "four"}}, "r.toml")


def test_olive_has_it() -> None:
    mine = config_of(More)["turtles"]
    assert (json_type(mine.kind), mine.help) == (int, HELP)
    with pytest.raises(InputError, match="turtles must be from 1 to 9, not 0"):
        More.from_settings({"turtles": 0})


def test_the_help_has_it() -> None:
    table = table_of(options_of(More), lambda o: o.toml)
    assert f"| `verify.turtles` | a whole number, from 1 to 9 | `3` | {HELP} |" in table


@frozen(kw_only=True)
class Kinds(Declaration):
    """One option of each kind."""

    job: ClassVar[str] = "kinds"

    first: Annotated[int, Range(0)] = option(REQUIRED, "needed", positional=True)
    flag: bool = option(True, "turn it off", flag="--no-flag")
    names: Names = option((), "names", flag="--name")
    sizes: Sizes | None = option(None, "sizes", flag="--size")
    per: PerOutput | None = option(None, "bound")


def test_defaults_are_values_of_their_types() -> None:
    """They are not checked again in every call."""
    jobs = [command.options for command in COMMANDS.values() if command.options is not None]
    declared = [(cls, o) for cls in (*jobs, Gates, CiOptions) for o in options_of(cls)]
    assert len(declared) > 150
    for cls, o in declared:
        if o.default is not REQUIRED:
            assert repr(checked(o.kind, o.default, f"{cls.job}: {o.name}")) == repr(o.default)


def test_words_of_each_kind() -> None:
    parser = completion.parser_for([])

    add_flags(parser, Kinds)
    words = [
        "--first",
        "2",
        "--no-flag",
        "--name",
        "a",
        "--name",
        "b",
        "--size",
        "N=3",
        "--size",
        "M=4",
        "--per",
        "y=1",
        "--per",
        "z=2",
    ]
    made = from_flags(Kinds, parser.parse_known_args([*words, "doctor"])[0])
    assert (made.first, made.flag, made.names) == (2, False, ("a", "b"))
    assert (made.sizes, made.per) == ({"N": 3, "M": 4}, {"y": 1.0, "z": 2.0})
    with pytest.raises(InputError, match="kinds: first is missing"):
        Kinds.from_settings({})
    for name, kind in (("names", Names), ("sizes", Sizes), ("per", PerOutput)):
        with pytest.raises(InputError, match=f"^kinds: {name} must be "):
            checked(kind, 3 if name != "per" else "x", f"kinds: {name}")


GOOD_INPUTS = [
    None,
    "a.npz",
    Path("a.npy"),
    {"x": 1},
    [],
    ["a.npz", {"x": 1}],
    ({"x": 1},),
    [["a.npz"]],
]
BAD_INPUTS = [3, 0.5, b"a.npz", bytearray(b"a")]


@pytest.mark.parametrize("value", GOOD_INPUTS, ids=repr)
def test_sets_of_inputs(value: Any) -> None:
    assert InputKind().check(value, "verify: inputs") is value


@pytest.mark.parametrize("around", [lambda v: v, lambda v: [v], lambda v: ["a.npz", [v]]])
@pytest.mark.parametrize("value", BAD_INPUTS, ids=repr)
def test_what_is_no_set_of_inputs(value: Any, around: Any) -> None:
    """However deep it lies among others."""
    with pytest.raises(InputError, match=f"^verify: inputs must be files .*{type(value).__name__}"):
        InputKind().check(around(value), "verify: inputs")
