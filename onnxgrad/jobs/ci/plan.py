"""The plan of `onnxgrad ci`: the models of a recipe, the paths of their results, and their entries
in the lock.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.jobs.ci import lock as locks
from onnxgrad.jobs.ci.declarations import Gates
from onnxgrad.jobs.ci.lock import Lock
from onnxgrad.jobs.ci.work import Job, Setup, ready
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.optimize import pipeline_of
from onnxgrad.jobs.recipe import Recipe, heading
from onnxgrad.jobs.requirements import bound_of
from onnxgrad.jobs.surgery.lift import prepare_path
from onnxgrad.name_lists import fits, names_among
from onnxgrad.passes.base import Pass
from onnxgrad.wording import option, perhaps


def files(pattern: str, folder: Path) -> list[str]:
    """Returns the files that a glob finds from `folder`, with / between the parts."""
    return [_normal(n) for n in _found(pattern, folder) if (folder / n).is_file()]


def broken_links(pattern: str, folder: Path) -> list[str]:
    """Returns the broken links that a glob finds: models that were not fetched."""
    links = [n for n in _found(pattern, folder) if (folder / n).is_symlink()]
    return [_normal(n) for n in links if not (folder / n).exists()]


def meets(pattern: str, name: str) -> bool:
    """Whether the glob would match a file with this name, with / between the parts of both."""
    return _meets(_normal(pattern).split("/"), name.split("/"))


def met_nothing(pattern: str, folder: Path) -> str:
    """Returns the message about a glob without files, with a suggestion."""
    if (folder / pattern).is_dir():
        return f"'{pattern}' is a folder: write for example '{pattern.rstrip('/')}/*.onnx'"
    around = files("**/*.onnx", folder)
    what = "no file matches" if glob.has_magic(pattern) else "there is no file"
    return f"{what} '{pattern}' (from the folder of this file){perhaps(pattern, around)}"


def _found(pattern: str, folder: Path) -> list[str]:
    found = glob.glob(pattern, root_dir=folder, recursive=True)
    if not found and (folder / pattern).is_file():  # its own name looks like a glob
        found = [pattern]
    return found


def _normal(name: str) -> str:
    return os.path.normpath(name).replace(os.sep, "/")


def _meets(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Matches as glob.glob: ** matches folders, and no wildcard matches a name that begins with a
    dot.
    """
    if not pattern:
        return not parts
    if pattern[0] == "**":
        if _meets(pattern[1:], parts):
            return True
        return bool(parts) and not parts[0].startswith(".") and _meets(pattern, parts[1:])
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], pattern[0]) and _meets(pattern[1:], parts[1:])


_FIELD = re.compile(r"(\{[^{}]*\})")
# names under which a recipe is found automatically; a folder may have one of them
_FOUND = ("onnxgrad.toml", "pyproject.toml")
# of `out`: a model's name without suffix, its folder, and the name of a variant
_FIELDS = ("{name}", "{folder}", "{variant}")


@frozen
class Plan:
    """The `jobs` in the order of the models' names; `gone`: models that only the `lock` has."""

    recipe: Recipe
    lock_path: Path
    lock: Lock | None
    jobs: tuple[Job, ...]
    gone: tuple[str, ...]
    outputs: tuple[str, ...] = ()  # of all models, also those that `only` leaves out


@frozen
class How:
    """`updating`: the lock will be written, so it may be damaged. `recording`: stored samples will
    be written. `again`: results that the lock accepted run again. `only`: names and globs of the
    models and variants to process.
    """

    updating: bool = False
    recording: bool = False
    again: bool = False
    only: tuple[str, ...] = ()


@frozen
class _Target:
    """One result: the `file` of its model, its variant or an empty text, and what finds options."""

    file: str
    variant: str
    options: OptimizeOptions
    gates: Gates

    @property
    def named(self) -> tuple[str, str]:
        """The name of the file, and that of the result for patterns without {variant}."""
        stem = Path(self.file).stem
        return stem, f"{stem}.{self.variant}" if self.variant else stem


def plan_of(recipe: Recipe, how: How | None = None, *, setup: Setup | None = None) -> Plan:
    """Returns the plan, and refuses everything that can be refused before any work: globs without
    files, results with the same path, a lock that cannot be read.

    Raises InputError.
    """
    how = how or How()
    folder = Path(os.path.abspath(recipe.where)).parent
    found = _models(recipe, folder)
    setup = setup or Setup()
    wanted = {
        f"{name}:{variant}" if variant else name: _Target(
            name,
            variant,
            recipe.options(name, OptimizeOptions(), by, variant),
            recipe.gates(name, by, variant),
        )
        for name, by in found.items()
        for variant in ("", *recipe.variants_of(name, by))
    }
    outputs = _outputs(recipe, folder, wanted)
    every = wanted
    wanted = _with_samples(recipe, folder, _only(wanted, how.only), how.recording)
    for target in wanted.values():
        _check_options(target.options, target.gates, ready(setup), recipe.where, folder)
    where = Path(recipe.where)
    own = "onnxgrad.lock.json" if where.name in _FOUND else f"{where.stem}.lock.json"
    lock_path = where.parent / recipe.ci.get("lock", own)
    try:
        lock = locks.read(lock_path)
    except locks.NewerLock:
        raise
    except InputError:
        if not how.updating:
            raise
        locks.check_ours(lock_path)
        lock = None  # a damaged lock is written anew
    if lock is not None:
        _check_owner(lock, lock_path, where, how.updating)
    known = {} if lock is None else lock.models
    jobs = tuple(
        Job(
            name,
            str(folder / target.file),
            outputs.get(name),
            target.options,
            target.gates,
            recipe.where,
            str(folder),
            baseline=known.get(name),
            locked=lock is not None,
            updating=how.updating,
            setup=setup,
            digest="" if lock is None else lock.digests.get(name, ""),
            former=None if lock is None else lock.inputs.get(name),
            recording=how.recording and target.gates.expect is not None,
            variant=target.variant,
            accepted=None if lock is None else lock.accepted.get(name),
            again=how.again,
        )
        for name, target in wanted.items()
    )
    gone = tuple(name for name in known if name not in every)
    return Plan(recipe, lock_path, lock, jobs, gone, tuple(outputs.values()))


def _forms(name: str, target: _Target) -> tuple[str, ...]:
    """Returns the names by which a user may refer to a result."""
    file = Path(target.file)
    return name, target.file, file.name, file.stem, target.variant


def _only(wanted: Mapping[str, _Target], names: Sequence[str]) -> dict[str, _Target]:
    """Returns the results that one of the names or globs means: by path, file name with or without
    suffix, or variant.
    Raises InputError for a name that means none.
    """
    if not names:
        return dict(wanted)
    found: dict[str, _Target] = {}
    forms = {name: _forms(name, target) for name, target in wanted.items()}
    known = {form for of_one in forms.values() for form in of_one}
    for pattern in names_among(names, known, "only"):
        met = {
            name: target
            for name, target in wanted.items()
            if any(fits(form, pattern) for form in forms[name])
        }
        if not met:
            where = option(f"--only {pattern}", f"only: {pattern!r}")
            raise InputError(f"{where} matches none of the models{perhaps(pattern, list(wanted))}")
        found |= met
    return {name: target for name, target in wanted.items() if name in found}


def _check_options(
    options: OptimizeOptions, gates: Gates, plugins: Sequence[Pass], where: str, folder: Path
) -> None:
    """Raises InputError for passes that do not exist, and for a missing model to measure
    against.
    """
    try:
        pipeline_of(options, plugins)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    required = gates.require or {}
    other = bound_of("latency", required.get("latency", 0)).of
    if other and not (folder / other).is_file():
        raise InputError(f"{where}: require: latency: {met_nothing(other, folder)}")


def _check_owner(lock: Lock, path: Path, recipe: Path, updating: bool) -> None:
    """Raises InputError for another recipe's lock; an update takes the lock over if that recipe is
    gone.
    """
    if lock.recipe == recipe_from(path, recipe):
        return
    if (path.parent / lock.recipe).is_file():
        raise InputError(
            f"{path}: is the lock of {lock.recipe}; write another name into "
            f'{heading(str(recipe), "ci")}, such as lock = "{recipe.stem}-2.lock.json"'
        )
    if not updating:
        raise InputError(
            f"{path}: is the lock of {lock.recipe}, which is gone: run `onnxgrad ci --update`"
        )


def recipe_from(lock: Path, recipe: Path) -> str:
    """Returns the name of a recipe in its lock: the path from the lock's folder."""
    return os.path.relpath(recipe, lock.parent).replace(os.sep, "/")


def _models(recipe: Recipe, folder: Path) -> dict[str, list[str]]:
    """Returns the models by their paths from `folder`, with the globs that found each; without
    those that a `!GLOB` excludes.
    """
    listed: Sequence[str] = recipe.ci.get("models", ())
    if not listed and not recipe.models:
        raise InputError(
            f"{recipe.where}: names no models: write models = "
            f'["models/*.onnx"] into {heading(recipe.where, "ci")}'
        )
    found: dict[str, list[str]] = {}
    for pattern in _globs(recipe):
        for name in _taken(pattern, recipe, folder):
            found.setdefault(name, []).append(pattern)
    if not found:
        raise InputError(f"{recipe.where}: models: the globs with ! exclude all models")
    if listed:
        _check_tables(recipe, folder, found)
    return dict(sorted(found.items()))


def _globs(recipe: Recipe) -> list[str]:
    """Returns the globs that find models."""
    listed = [p for p in recipe.ci.get("models", ()) if not p.startswith("!")]
    return listed or list(recipe.models)


def _taken(pattern: str, recipe: Recipe, folder: Path) -> list[str]:
    """Returns the models that one glob finds. Raises InputError if it finds none, and for a broken
    link, because a model that was not fetched would be skipped silently.
    """
    names = files(pattern, folder)
    for name in broken_links(pattern, folder):
        if not _is_left_out(name, recipe):
            raise InputError(f"{recipe.where}: '{name}' is a link to a file that is not there")
    if not names:
        raise InputError(f"{recipe.where}: {met_nothing(pattern, folder)}")
    return [name for name in names if not _is_left_out(name, recipe)]


def _is_left_out(name: str, recipe: Recipe) -> bool:
    """Whether a `!GLOB` of the list excludes this model."""
    listed: Sequence[str] = recipe.ci.get("models", ())
    return any(p.startswith("!") and meets(p[1:], name) for p in listed)


def _check_tables(recipe: Recipe, folder: Path, found: Mapping[str, list[str]]) -> None:
    """Raises InputError if a table of options matches no model."""
    for pattern in recipe.models:
        names = set(files(pattern, folder)) & found.keys()
        for name in names:
            found[name].append(pattern)
        if not names and pattern in recipe.unmet(found):
            hint = perhaps(pattern, [*found, *map(os.path.basename, found)])
            raise InputError(f'{recipe.where}: models."{pattern}" matches none of the models{hint}')


def _outputs(recipe: Recipe, folder: Path, wanted: Mapping[str, _Target]) -> dict[str, str]:
    """Returns the path of each result by `out`: a pattern with {name}, {folder} and {variant}, or a
    folder. Raises InputError if two results have the same path, or one replaces a model.
    """
    out = recipe.ci.get("out")
    if out is None:
        return {}
    pattern = out if "{" in out else f"{out.rstrip('/')}/{{name}}.onnx"
    _check_pattern(pattern, f"{recipe.where}: out")
    taken: dict[str, str] = {}
    found: dict[str, str] = {}
    results: list[str] = []
    models = {os.path.realpath(folder / target.file): target.file for target in wanted.values()}
    for name, target in wanted.items():
        file = _filled(pattern, target)
        lifted = target.options.lift is not False
        made = [folder / file, *([prepare_path(folder / file)] if lifted else [])]
        found[name] = os.path.realpath(made[0])
        for place in map(os.path.realpath, made):
            if place in models:
                raise InputError(
                    f"{recipe.where}: out = {out!r} would replace {models[place]}; models are "
                    "never changed"
                )
            if place in taken:
                raise InputError(
                    f"{recipe.where}: out = {out!r} names the same file for {taken[place]} and "
                    f"{name}: write for example 'build/{{folder}}/{{name}}.onnx'"
                )
            taken[place] = name
        results += [os.path.relpath(path, folder).replace(os.sep, "/") for path in made]
    for name in results:
        _check_next_time(recipe, name)
    return found


def _check_next_time(recipe: Recipe, name: str) -> None:
    """Raises InputError for a result that the next run would find as a model."""
    for pattern in _globs(recipe):
        if meets(pattern, name) and not _is_left_out(name, recipe):
            mine = f"!{name.split('/')[0]}/**" if "/" in name else f"!{name}"
            raise InputError(
                f"{recipe.where}: '{pattern}' also matches {name}, a result, which would be a "
                f"model in the next run: write it elsewhere, or '{mine}' into the list of models"
            )


def _with_samples(
    recipe: Recipe,
    folder: Path,
    wanted: Mapping[str, _Target],
    recording: bool,
) -> dict[str, _Target]:
    """Returns the options with the file of each model's samples. Raises InputError if it is
    missing, or is to be recorded for two models.
    """
    taken: dict[str, str] = {}
    found = dict(wanted)
    for name, target in wanted.items():
        gates = target.gates
        if gates.expect is None:
            continue
        where = f"{recipe.where}: verify.expect"
        _check_pattern(gates.expect, where)
        file = os.path.abspath(folder / _filled(os.path.relpath(gates.expect, folder), target))
        shown = os.path.relpath(file, folder).replace(os.sep, "/")
        if not file.endswith(".npz"):
            raise InputError(f"{where}: '{shown}' must end in .npz")
        if target.options.lift is not False:
            raise InputError(f"{where}: does not apply with lift, which splits the result")
        if recording and file in taken:
            raise InputError(
                f"{where}: '{shown}' would hold the samples of {taken[file]} and {name}: write for "
                "example 'golden/{name}.npz'"
            )
        if not recording and not os.path.isfile(file):
            raise InputError(
                f"{where}: there is no {shown}: `onnxgrad ci --update --record` writes it"
            )
        taken[file] = name
        found[name] = replace(target, gates=replace(gates, expect=file))
    if recording and not taken:
        raise InputError(
            f"{recipe.where}: nothing to record: name a file with expect in "
            f"{heading(recipe.where, 'verify')}"
        )
    return found


def _filled(pattern: str, target: _Target) -> str:
    """Returns the file that a pattern with {name}, {folder} and {variant} stands for."""
    plain, full = target.named
    parts = {
        "{name}": plain if "{variant}" in pattern else full,
        "{folder}": Path(target.file).parent.as_posix(),
        "{variant}": target.variant or ("." if "{variant}/" in pattern else ""),
    }
    return "".join(parts.get(part, part) for part in _FIELD.split(pattern))  # in one step


def _check_pattern(pattern: str, where: str) -> None:
    for field in _FIELD.findall(pattern):
        if field not in _FIELDS:
            known = ", ".join(_FIELDS)
            raise InputError(f"{where} = {pattern!r}: unknown field '{field}'; use {known}")
    if set("{}") & set(_FIELD.sub("", pattern)):
        raise InputError(f"{where} = {pattern!r}: a brace has no partner")
