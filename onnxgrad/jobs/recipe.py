"""Recipes: the options of `optimize` and the requirements on its result, in `[tool.onnxgrad]` of
pyproject.toml, in onnxgrad.toml, or in a TOML file that the caller names.

    [tool.onnxgrad]                       # in other files than pyproject.toml: at top level
    preset = "default"                    # or passes = "a,b{option=value}" (or a list of these)
    without = ["combine-parallel-conv"]
    merge = "auto"
    target_opset = 23
    for = "onnxruntime"
    runtimes = ["/envs/old/bin/python"]   # the result must compute the same there
    allow_unproved = true                 # for `onnxgrad ci`, if verify.run = false

    [tool.onnxgrad.verify]
    dims = { batch = 4 }
    seeds = [0, 1]
    inputs = ["batch.npz"]                # files lie beside the recipe
    tolerance = 1e-6                      # of max|y|, in addition to the calibrated one
    rtol = 1e-2                           # replaces it, as `onnxgrad verify --rtol`; also atol and
    metric = ["cosine=0.999"]             # metric; rtol = { logits = 1e-2 } is for one output
    expect = "golden/{name}.npz"          # for `onnxgrad ci`: outputs stay within a share of these
    expect_within = 1e-3

    [tool.onnxgrad.lint]                  # see `onnxgrad help lint`
    nan-weights = "error"

    [tool.onnxgrad.models."unet*.onnx"]   # the options above again, for these models alone, and:
    require = { MatMul = "<=164", "MatMul+Gemm" = "<=200", bytes = "<= -10%" }

    [tool.onnxgrad.models."unet*.onnx".variants.fp16]   # for `onnxgrad ci`: one more result
    float16 = { rtol = 1e-2 }

`onnxgrad ci` processes the models that the globs find. Only `ci` reads these tables (`onnxgrad
optimize` has options instead):

    [tool.onnxgrad.ci]
    models = ["models/*.onnx", "!**/old*"]    # in place of the globs above, which then set options
    out = "build/{name}.onnx"
    lock = "onnxgrad.lock.json"               # of mobile.toml: "mobile.lock.json"

    [tool.onnxgrad.bench]                 # how latency is measured, if it is required or if:
    run = true
    seconds = 2.0
    rounds = 20

`jobs.requirements` lists the keys of `require`. An option that the caller sets wins over the
recipe.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError, NotProved
from onnxgrad.frozen import frozen
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.atomic_files import text_of
from onnxgrad.jobs.ci.declarations import CiOptions, Gates
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import Option, json_type, keys_of
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.requirements import (
    EXACT,
    QUANTITIES,
    Held,
    bound_of,
    check_operators,
    check_quantity,
    facts_of,
    hold,
    left_to_ci,
    operators_of,
    within_tolerance,
)
from onnxgrad.jobs.surgery.constant_values import is_file
from onnxgrad.options import checked, several
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.coverage.summary import wanted_share
from onnxgrad.verify.running.runtimes import programs
from onnxgrad.wording import did_you_mean, one_line, option

OWN_FILE = "onnxgrad.toml"  # found in the current folder, as pyproject.toml is
TABLE = "tool.onnxgrad"
OPTIONS, GATES, OF_CI = keys_of(OptimizeOptions), keys_of(Gates), keys_of(CiOptions)
_SUBTABLES = ("verify", "bench")
_JOINED = ("require", "lint")  # tables of a model that add to the common ones


@frozen
class Recipe:
    """The flat options for all models, those for the models that a glob matches, and those of their
    variants. `where` names the file, `ci` are the options of `onnxgrad ci` alone.
    """

    where: str
    common: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ci: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def of(self, model: str, found_by: Collection[str] = (), variant: str = "") -> dict[str, Any]:
        """Returns the options for one model: the common ones, then those of every glob that matches
        its path or file name, or by which it was found, then those of its variant.
        """
        tables = [own for p, own in self.models.items() if p in found_by or _means(p, model)]
        tables += [v[variant] for v in self._variants(model, found_by) if variant in v]
        found = dict(self.common)
        for own in tables:
            joined = {k: {**found.get(k, {}), **own.get(k, {})} for k in _JOINED}
            if "preset" in own:
                found.pop("passes", None)
            found.update(own)
            found.update((k, table) for k, table in joined.items() if table)
        return found

    def variants_of(self, model: str, found_by: Collection[str] = ()) -> list[str]:
        """Returns the names of the variants of one model."""
        return list(dict.fromkeys(name for v in self._variants(model, found_by) for name in v))

    def _variants(
        self, model: str, found_by: Collection[str]
    ) -> list[Mapping[str, Mapping[str, Any]]]:
        return [own for p, own in self.variants.items() if p in found_by or _means(p, model)]

    def options(
        self,
        model: str,
        options: OptimizeOptions,
        found_by: Collection[str] = (),
        variant: str = "",
    ) -> OptimizeOptions:
        """Returns the options for one model: those of the caller, else the recipe's."""
        own = self.of(model, found_by, variant)
        found = {OPTIONS[key].name: value for key, value in own.items() if key in OPTIONS}
        if "preset" in options.given:  # of preset and passes, only the one that the caller set
            found.pop("passes", None)
        if EXACT in own.get("require", {}):
            found.setdefault("exact", True)
        mine = {k: v for k, v in found.items() if k not in options.given}
        return OptimizeOptions.from_settings(
            {**mine, **{k: getattr(options, k) for k in options.given}}
        )

    def gates(self, model: str, found_by: Collection[str] = (), variant: str = "") -> Gates:
        """Returns the requirements of one model."""
        found = self.of(model, found_by, variant)
        return Gates.from_settings(
            {GATES[key].name: value for key, value in found.items() if key in GATES}
        )

    def unmet(self, models: Collection[str]) -> list[str]:
        """Returns the globs that match none of the models."""
        return [p for p in self.models if not any(_means(p, model) for model in models)]

    def check_names(self, model: str, program: Program) -> None:
        """Raises InputError, before any rewrite, for a required operator that neither a schema nor
        the model has.

        Operators of a domain without schemas are accepted, because rewrites may add them; `check`
        decides.
        """
        required = self.of(model).get("require", {})
        check_operators(required, operators_of(program), self.where, others=True)

    def check(self, model: str, outcome: Outcome) -> None:
        """Raises NotProved if the optimised model misses a requirement, and InputError for a
        required operator that does not exist. Requirements of `left_to_ci` are ignored.
        """
        own, program, report = self.of(model), outcome.program, outcome.report
        first = outcome.given or program
        required = own.get("require", {})
        known = operators_of(program) | set(stats_of(program.proto).operators)
        check_operators(required, known, self.where)
        given, result = facts_of(first, first.proto), facts_of(program, to_proto(program))
        later = left_to_ci(required)
        held: list[Held] = [
            hold(name, bound_of(name, text), result, given, proof=report, exact=outcome.exact)
            for name, text in required.items()
            if name not in later
        ]
        held += within_tolerance(own.get("verify.tolerance"), report)
        missed = [one.why for one in held if not one.held]
        if missed:
            raise NotProved(
                f"requirement of {self.where} not met: {'; '.join(missed)}; nothing was written"
            )


def _means(pattern: str, model: str) -> bool:
    """Whether a glob is that of a model: of its path, its file name, or this name without
    `.onnx`.
    """
    path = Path(model)
    return any(fnmatchcase(name, pattern) for name in (model, path.name, path.stem))


def find(config: str | None) -> Recipe | None:
    """Returns the recipe of `--config FILE`, else of onnxgrad.toml in the current folder, or of
    pyproject.toml if it has the table, else None.

    Raises InputError for a file that is missing or not TOML, for an unknown key, and if both files
    are recipes.
    """
    if config is not None:
        return read(Path(config))
    found = _found()
    if found is None:
        return None
    for options in (found.common, *found.models.values()):
        for python in programs(several(options.get("runtimes", ()), "runtimes")):
            raise InputError(
                f"{found.where}: runtimes starts the program {python}, which a recipe may do only "
                f"if you name it: {option(f'--config {found.where}', f'recipe={found.where!r}')}, "
                f"or `onnxgrad ci {found.where}`"
            )
    return found


def _found() -> Recipe | None:
    """Returns the recipe in the current folder, if there is one."""
    own = read(Path(OWN_FILE)) if Path(OWN_FILE).is_file() else None
    table = None
    # a missing or invalid pyproject.toml is the concern of other tools
    with contextlib.suppress(OSError, InputError, ValueError, RecursionError):
        table = _table(_read(text_of(Path("pyproject.toml"))))
    if own is not None and table is not None:
        raise InputError(
            f"{OWN_FILE} and [{TABLE}] of pyproject.toml are both here: keep one of them"
        )
    return own if table is None else parse(table, "pyproject.toml")


def read(path: Path) -> Recipe:
    """Returns the recipe in a file. Raises InputError."""
    try:
        data = _read(text_of(path))
    except OSError as e:
        raise InputError(f"{path}: {e.strerror or e}") from e
    # not TOML, or more digits or deeper arrays than Python parses
    except (ValueError, RecursionError) as e:
        why = one_line(e)
        if path.suffix == ".onnx":
            why = f'a recipe, such as {OWN_FILE}, names it: [ci] models = ["{path.name}"]'
        raise InputError(f"{path}: not TOML: {why}") from e
    table = _table(data)
    if table is None and path.name == "pyproject.toml":
        raise InputError(f"{path}: has no table [{TABLE}]")
    return parse(data if table is None else table, str(path))


def _read(text: str) -> dict[str, Any]:
    """Returns what TOML says. Raises ValueError and RecursionError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _table(data: Mapping[str, Any]) -> Any:
    return data["tool"].get("onnxgrad") if isinstance(data.get("tool"), dict) else None


def parse(table: Any, where: str) -> Recipe:
    """Returns the recipe of a table in the file `where`. Raises InputError, which names the key."""
    if not isinstance(table, dict):
        raise InputError(f"{where}: [{TABLE}] must be a table")
    if not isinstance(table.get("models", {}), dict):
        one = heading(where, 'models."*.onnx"')
        raise InputError(
            f"{where}: 'models' are tables of options, such as {one}; the list of models that "
            f"`onnxgrad ci` takes is in {heading(where, 'ci')}"
        )
    folder = Path(where).parent
    models, variants = {}, {}
    for pattern, own in table.get("models", {}).items():
        place = f"{where}: models.{pattern!r}"
        models[pattern] = _flat(own, place, folder, ("variants",))
        variants[pattern] = _of_variants(own.get("variants", {}), place, folder)
    common = _flat(table, where, folder, ("models", "ci"))
    return Recipe(where, common, models, _of_ci(table.get("ci", {}), where), variants)


def _of_variants(table: Any, where: str, folder: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(table, dict):
        raise InputError(f"{where}: 'variants' must be a table")
    for name in table:
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{where}: variants: {name!r} cannot be a name: use letters, digits, - and _"
            )
    return {name: _flat(own, f"{where}: variants.{name}", folder) for name, own in table.items()}


_NAME = re.compile(r"[\w-]+")
_FILES = re.compile(r"\b(labels|file)=([^,;{}]+)")  # in the text of steps


def _of_ci(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError(f"{where}: 'ci' must be a table")
    found = {key: _checked(key, value, OF_CI, f"{where}: ci") for key, value in table.items()}
    if found.get("models") == []:
        raise InputError(f"{where}: ci: 'models' is empty")
    return found


def heading(where: str, name: str) -> str:
    """Returns the heading of a table of a recipe in that file."""
    return f"[{TABLE}.{name}]" if Path(where).name == "pyproject.toml" else f"[{name}]"


def _flat(table: Any, where: str, folder: Path, others: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the options of a table by flat keys (`verify.seeds`), with files relative to
    `folder`. `others` are keys that the caller reads itself. Raises InputError, which names the
    key.
    """
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table")
    flat = {k: v for k, v in table.items() if k not in (*_SUBTABLES, *others)}
    for name in _SUBTABLES:
        if not isinstance(table.get(name, {}), dict):
            raise InputError(f"{where}: '{name}' must be a table")
        flat.update((f"{name}.{k}", v) for k, v in table.get(name, {}).items())
    known = {**OPTIONS, **GATES}
    flat = {key: _checked(key, value, known, where, others) for key, value in flat.items()}
    try:
        if "verify.coverage" in flat:
            wanted_share(flat["verify.coverage"])
        Bounds.of(*(flat.get(f"verify.{name}") for name in ("atol", "rtol", "metric")))
        for name, text in flat.get("require", {}).items():
            check_quantity(name)
            bound_of(name, text)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if "verify.inputs" in flat:
        files = several(flat["verify.inputs"], "inputs")
        flat["verify.inputs"] = [_beside(folder, item) for item in files]
    if "verify.expect" in flat:
        flat["verify.expect"] = os.path.join(folder, flat["verify.expect"])
    return {**flat, **{k: _from(folder, flat[k]) for k in ("join", "before", "after") if k in flat}}


def _from(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table of edits with files relative to `folder`."""
    found = dict(table)
    if "model" in found:
        found["model"] = os.path.join(folder, found["model"])
    for key in {"bind", "set"} & found.keys():
        found[key] = {
            name: os.path.join(folder, value) if is_file(value) else value
            for name, value in found[key].items()
        }
    if "preprocess" in found:
        found["preprocess"] = {
            key: os.path.join(folder, steps) if key == "config" else _with_files(folder, steps)
            for key, steps in found["preprocess"].items()
        }
    if "reference" in found.get("open_batch", {}):
        files = [os.path.join(folder, f) for f in several(found["open_batch"]["reference"], "")]
        found["open_batch"] = {**found["open_batch"], "reference": files}
    return found


def _with_files(folder: Path, steps: Any) -> Any:
    """Returns steps, or steps by name, with files relative to `folder`."""
    if isinstance(steps, Mapping):
        return {name: _with_files(folder, text) for name, text in steps.items()}
    if not isinstance(steps, str):
        return steps
    return _FILES.sub(lambda found: f"{found[1]}={os.path.join(folder, found[2])}", steps)


def _checked(
    key: str, value: Any, known: Mapping[str, Option], where: str, others: Iterable[str] = ()
) -> Any:
    """Returns the value of a key. Raises InputError if the key is unknown or the value has another
    type.
    """
    names = [*known, *others]
    if key not in known:
        hint = did_you_mean(key, names, f"there are {', '.join(names)}")
        if key in QUANTITIES and "require" in known:
            hint = f"it belongs into `require`, as in require = {{ {key} = ... }}"
        raise InputError(f"{where}: unknown key '{key}'; {hint}")
    kind, place = known[key].kind, f"{where}: '{key}'"
    return checked(kind, checked(json_type(kind), value, place), place)


def _beside(folder: Path, item: str) -> str:
    """Returns `[NAME=]FILE` with the file in `folder`."""
    name, equals, file = item.partition("=")
    if not equals or (folder / item).exists():
        return os.path.join(folder, item)
    return f"{name}={os.path.join(folder, file)}"
