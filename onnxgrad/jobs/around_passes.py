"""The changes of a model before and after the passes of `optimize`: it is joined, edited, opened,
preprocessed, converted to float16 and split.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.load import load_in_place
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.declarations import EDIT, HALF, JOIN, OPEN, PREPROCESS, OptimizeOptions
from onnxgrad.jobs.hooks import Hooks, Proved
from onnxgrad.jobs.outcome import Change, Outcome
from onnxgrad.jobs.row_declarations import OpenBatchOptions
from onnxgrad.jobs.surgery.declarations import EditOptions, JoinOptions, LiftOptions
from onnxgrad.jobs.surgery.edit import Changes, changes_of, edit
from onnxgrad.jobs.surgery.fixed_dims import sizes_bound
from onnxgrad.jobs.surgery.join import join
from onnxgrad.jobs.surgery.lift import lift, named_inputs, with_inputs
from onnxgrad.jobs.surgery.metadata import change as set_metadata
from onnxgrad.name_lists import names_among
from onnxgrad.verify.feeds.dims import roles
from onnxgrad.verify.feeds.proof_cases import sets_of
from onnxgrad.wording import counted, in_a_recipe, option

# options of a proof that also apply to changes of the interface, which are exact
_PROOF = frozenset({"provider", "threads", "seeds", "checks", "inputs", "dims", "allow_empty"})


def changed_before(model: Program, options: OptimizeOptions, outcome: Outcome) -> Program:
    """Returns the model for the passes: joined, edited, with open dimensions, and with the weights
    of `lift` as inputs. Raises InputError and NotProved.
    """
    proof = _proof_of(options)
    if options.join:
        other = options.join["model"]
        with _in_table("join"):
            outputs = [v.name for v in model.main.outputs]
            joining: JoinOptions = JOIN.options(options.join)
            outputs += [joining.prefix + v.name for v in load_in_place(other).main.outputs]
            stage = _of_outputs(proof, outputs)
            joined = join(model, other, JOIN.options(options.join, **stage), Hooks())
        model = _recorded(outcome, f"joined with {other}", joined)
    if has_edits(options.before):
        with _in_table("before"):
            before: EditOptions = EDIT.options(options.before or {})
            stage = _of_outputs(proof, changes_of(model, before)[0].outputs(model))
            made = edit(model, EDIT.options(options.before or {}, **stage), Hooks())
        model = _recorded(outcome, "edited before the passes", made)
    model = _opened(model, options, options.before, "before", outcome)
    model = _preprocessed(model, options, options.before, "before", outcome)
    if outcome.followed is not None:
        outcome.followed.reference = model
    return model if isinstance(options.lift, bool) else with_inputs(model, options.lift)


def changed_after(options: OptimizeOptions, outcome: Outcome) -> None:
    """Converts, edits and splits the result of the passes. Raises InputError and NotProved."""
    if options.float16 is not False:
        _halve(options, outcome)
    followed = outcome.followed
    if followed is not None:
        outcome.changed = followed.marked(outcome.program)
        followed.reference = _without_passes(followed.reference, options)
    made, proof, weights = _edited(outcome.program, options, outcome)
    if made is not outcome.program:
        outcome.changed = made
    if options.metadata:
        set_metadata(outcome.program, options.metadata, (), {})
    if options.lift is not False:
        proof = _of_outputs(proof, [v.name for v in outcome.program.main.outputs])
        settings = LiftOptions.from_settings({**proof, "weights": weights})
        divided = lift(outcome.program, settings, Hooks(), paying=True)
        parts = (stats_of(to_proto(p)).nodes for p in (divided.prepare, divided.program))
        once, each = (counted(nodes, "node") for nodes in parts)
        outcome.prepare = divided.prepare
        outcome.changed = _recorded(outcome, f"{once} once at load, {each} in each run", divided)
    if followed is not None and outcome.record is not None:
        outcome.changed, outcome.prepare, outcome.record = followed.finish(
            outcome.record, outcome.program, outcome.prepare
        )


def _edited(
    model: Program, options: OptimizeOptions, outcome: Outcome
) -> tuple[Program, dict[str, Any], list[str]]:
    """Returns the result of the passes edited, opened and with steps, options of a proof of it,
    and the names of the weights for `lift`.
    """
    proof, weights = _proof_of(options), named_inputs(model, options.lift)
    if options.after is not None and has_edits(options.after):
        after: EditOptions = EDIT.options(options.after)
        with _in_table("after"):
            changes, _ = changes_of(model, after)
            new = changes.values
            weights = [new.get(name, name) for name in weights if name not in changes.bound]
            proof = _for_edited(model, changes, proof)
            made = edit(model, EDIT.options(options.after, **proof), Hooks())
        model = _recorded(outcome, "edited after the passes", made)
    model = _opened(model, options, options.after, "after", outcome)
    return _preprocessed(model, options, options.after, "after", outcome), proof, weights


def _without_passes(model: Program, options: OptimizeOptions) -> Program:
    """Returns a model that the passes have not rewritten with the changes after them. Raises
    InputError if they concern what only the result of the passes has.
    """
    after = None if options.after is None else {**options.after}
    if after is not None:
        after.pop("rename_node", None)  # which changes no value
    try:
        return _edited(model, options.having(after=after, verify=False, lift=False), Outcome())[0]
    except InputError as error:
        raise InputError(
            f"{option('--rebasable', 'rebasable')}: {error}: the proof of `rebase` makes the "
            "changes after the passes on the model as it was before them; make this one on the "
            "result of `rebase`"
        ) from None


def _halve(options: OptimizeOptions, outcome: Outcome) -> None:
    """Converts the result of the passes to float16 and proves that, within bounds of its own."""
    from onnxgrad.jobs.float16 import float16

    before, record = outcome.program, outcome.record
    table = options.float16 if isinstance(options.float16, Mapping) else {}
    with _in_table("float16"):
        done = float16(
            before, HALF.options(table, **_proof_of(options)), rebasable=record is not None
        )
        if done.error is not None:
            raise done.error
    if record is not None and done.record is not None:
        outcome.record = record.followed_by(done.record, before)
    summary = "" if done.report is None else done.report.summary
    notes = tuple(done.trace.notes)
    outcome.changes.append(Change("converted to float16 after the passes", notes, summary))
    outcome.halved, outcome.changed = done, done.program


def has_edits(table: Mapping[str, Any] | None) -> bool:
    """Whether a table has options of `edit`, in addition to those of other jobs."""
    return bool(table) and not (table or {}).keys() <= EDIT.parts.keys()


def _opened(
    model: Program,
    options: OptimizeOptions,
    table: Mapping[str, Any] | None,
    when: str,
    outcome: Outcome,
) -> Program:
    """Returns the model with the dimensions of the table made dynamic, or the model itself."""
    if table is None or "open_batch" not in table:
        return model
    from onnxgrad.jobs.open_batch import open_batch, open_sizes

    proof = {
        "provider": options.provider,
        "verify": options.proves,
        "seed": (options.seeds or (0,))[0],
        "dims": _dims_of(model, options),
    }
    with _in_table(f"{when}: open_batch"):
        opening: OpenBatchOptions = OPEN.options(table["open_batch"], **proof)
        job = open_batch if opening.open is None else open_sizes
        found = job(model, opening, Hooks())
    if outcome.followed is not None:
        outcome.followed.opened(model, found.program, outcome.record)
    what = "batch" if opening.open is None else ", ".join(opening.open)
    return _recorded(outcome, f"{what} opened {when} the passes", found)


def _preprocessed(
    model: Program,
    options: OptimizeOptions,
    table: Mapping[str, Any] | None,
    when: str,
    outcome: Outcome,
) -> Program:
    """Returns the model with the steps of the table around it, or the model itself."""
    if table is None or "preprocess" not in table:
        return model
    from onnxgrad.jobs.surgery.preprocess import preprocess

    of_others = {"inputs", "dims", "allow_empty"}  # they name other inputs and outputs
    proof = {k: v for k, v in _proof_of(options).items() if k not in of_others}
    proof["dims"] = _dims_of(model, options)
    with _in_table(f"{when}: preprocess"):
        found = preprocess(model, PREPROCESS.options(table["preprocess"], **proof), Hooks())
    return _recorded(outcome, f"steps added {when} the passes", found)


def _dims_of(model: Program, options: OptimizeOptions) -> dict[str, int]:
    """Returns the sizes of the proof whose symbols this model has."""
    known = roles(to_proto(model).graph)
    return {name: size for name, size in (options.dims or {}).items() if name in known}


def _recorded(outcome: Outcome, what: str, found: Proved) -> Program:
    """Returns the result of a change, which is added to the outcome. Raises NotProved."""
    summary = "" if found.report is None else found.report.summary
    outcome.changes.append(Change(what, tuple(found.notes), summary))
    return found.proved(what)


@contextlib.contextmanager
def _in_table(name: str) -> Iterator[None]:
    """Errors inside this context name the options in this table of a recipe."""
    try:
        with in_a_recipe():
            yield
    except OnnxgradError as error:
        error.args = (f"{name}: {error}", *error.args[1:])
        raise


def _proof_of(options: OptimizeOptions) -> dict[str, Any]:
    """Returns the options of the proof for edits: those of the passes, without bounds."""
    given = {k: v for k, v in options.proof().items() if k in _PROOF}
    return {**given, "verify": options.proves}


def _for_edited(program: Program, changes: Changes, proof: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of a proof of a program in terms of the edited program."""
    graph, names, bound = to_proto(program).graph, changes.values, changes.bound
    made = dict(proof)
    if "inputs" in made:
        made["inputs"] = [
            {names.get(n, n): v for n, v in each.items() if n not in bound}
            for each in sets_of(made["inputs"], program.proto)
        ]
    if "dims" in made:
        gone, new = sizes_bound(graph, changes.arrays), changes.symbols
        made["dims"] = {new.get(n, n): d for n, d in made["dims"].items() if n not in gone}
    if "allow_empty" in made:
        outputs = [v.name for v in program.main.outputs]
        allowed = names_among(made["allow_empty"], outputs, "allow_empty")
        made["allow_empty"] = [names.get(n, n) for n in allowed]
    return _of_outputs(made, changes.outputs(program))


def _of_outputs(proof: dict[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """Returns options of a proof without the names of outputs that another stage has."""
    if "allow_empty" not in proof:
        return proof
    allowed = names_among(proof["allow_empty"], outputs, "allow_empty")
    return {**proof, "allow_empty": [name for name in allowed if name in outputs]}
