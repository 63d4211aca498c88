"""The state of a training run in its checkpoint: its progress, and the facts that
identify the run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import names_of
from onnxgrad.train.data import HELD_OUT
from onnxgrad.train.held_out import SHARE
from onnxgrad.train.losses.base import FUNCTION
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.schedules import Rate, Schedule
from onnxgrad.train.step import TrainingStep
from onnxgrad.wording import option


@dataclass(frozen=True)
class Progress:
    """The progress of a run: steps taken, the current epoch, and the batches of it that are done.

    micro: the number of micro-batches since the last step; micro_loss: the sum of their losses,
    each times its number of labels if they are weighted by labels; micro_weight: the sum of these
    weights; micro_empty: how many of them have no label that counts.
    logged: the bytes of the log so far. best: the smallest held-out loss; stale: the number of
    evaluations since then; best_step, best_found: its step and all results of its evaluation.
    plateau: the state of a ReduceOnPlateau.
    """

    steps: int = 0
    epoch: int = 0
    batches: int = 0
    best: float | None = None
    stale: int = 0
    seed: int = 0
    micro: int = 0
    micro_loss: float = 0.0
    micro_weight: float = 0.0
    micro_empty: int = 0
    logged: int = 0
    best_step: int = 0
    best_found: Mapping[str, float] | None = None
    plateau: Mapping[str, float | None] | None = None

    @property
    def begun(self) -> bool:
        """Whether any batch was used."""
        return bool(self.steps or self.micro)

    def judged(self, found: Mapping[str, float]) -> Progress:
        """Returns the progress after an evaluation. A loss that is NaN is never the best."""
        loss = found["loss"]
        if math.isnan(loss) or (self.best is not None and loss >= self.best):
            return replace(self, stale=self.stale + 1)
        found = dict(found)
        return replace(self, best=found["loss"], best_step=self.steps, best_found=found, stale=0)

    def after(self, loss: float, divisor: float | None, *, by_labels: bool = False) -> Progress:
        """Returns the progress after a batch with this loss. divisor: the number of its labels that
        count, None if the loss has none.
        """
        weight = divisor if by_labels and divisor is not None else 1.0
        return replace(
            self,
            batches=self.batches + 1,
            micro=self.micro + 1,
            micro_loss=self.micro_loss + loss * weight,
            micro_weight=self.micro_weight + weight,
            micro_empty=self.micro_empty + (divisor == 0),
        )

    @property
    def mean(self) -> float:
        """The mean loss of the micro-batches since the last step."""
        return self.micro_loss / (self.micro_weight or 1.0)

    def from_zero(self) -> Progress:
        """Returns the progress without micro-batches."""
        return replace(self, micro=0, micro_loss=0.0, micro_weight=0.0, micro_empty=0)

    def without_best(self) -> Progress:
        """Returns the progress without the best evaluation."""
        return replace(self, best=None, best_step=0, best_found=None, stale=0)

    def nothing_left(self, epochs: int, steps: int | None) -> str:
        """Returns why a run to this many epochs or steps has nothing to do, or an empty text."""
        done, wanted, unit = self.epoch, epochs, "epochs"
        if steps is not None:
            done, wanted, unit = self.steps, steps, "steps"
        if not 0 < wanted <= done:
            return ""
        return (
            f"nothing was trained: {unit}={wanted} counts from the trainer's first step, and "
            f"{done} {unit} are done; {unit}={done + wanted} trains for as long again"
        )

    def check_trained(self, accumulate: int) -> None:
        """Raises InputError if the run took no step because the micro-batches did not suffice for
        one.
        """
        if self.micro:
            raise InputError(
                f"nothing was trained: {accumulate} micro-batches make a step, but there were "
                f"{self.micro}: use smaller batches or more epochs"
            )

    def words(self) -> dict[str, str]:
        """Returns the progress as texts, as a checkpoint stores it."""
        return {"progress": json.dumps(asdict(self))}

    @staticmethod
    def of(stored: Mapping[str, str], where: str) -> Progress:
        """Returns the progress that `words` stored. Raises InputError for anything else."""
        try:
            return Progress(**json.loads(stored["progress"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{where} has no progress of a training run ({error!r}): it is not a checkpoint"
            ) from None


# ---- identity of a run --------------------------------------------------------------------------

# JSON values by name
Facts: TypeAlias = "Mapping[str, Any]"
# a run in which one of these differs is a different run
_IDENTITY = ("parameters", "loss", "formula", "optimizer", SHARE)
# these may change between epochs; within one, it would be unknown which examples were seen
_OF_AN_EPOCH = (
    "kind", "batch_size", "order", "arrays", "examples", "samples", "constants", "scale", "augment",
)  # fmt: skip
# `Manifest.options`
_OF_STEP = ("batch_norm", "dropout", "autocast", "ste", "stop", "inputs_at", "standardize")
_WORDS = {
    "optimizer": "optimiser",
    "formula": "formula of the loss",
    "order": "seed",
    "samples": "data",
    "kind": "data",
    "length": "planned length",
}
_LONGEST = 60


def facts_of_step(task: TrainingStep, rate: Rate) -> dict[str, Any]:
    """Returns the facts of a step and of its learning rate."""
    manifest = task.manifest
    entries = manifest.groups or ({"glob": "", "optimizer": manifest.optimizer},)
    names = [entry["optimizer"].get("name") for entry in entries]
    found: dict[str, Any] = {
        "parameters": sorted(fed.name for fed in manifest.of_role("parameter")),
        "loss": manifest.objective,
        "optimizer": ", ".join(map(str, dict.fromkeys(names))),
    }
    if not manifest.objective or FUNCTION in manifest.objective:
        found["formula"] = _formula(task.evaluation)
    found |= {k: v for k, v in manifest.optimizer.items() if k not in ("name", "lr")}
    found["groups"] = [_group(entry) for entry in manifest.groups[:-1]]
    others = (
        "clip_value", "clip_norm", "accumulate", "accumulate_by", "average", "loss_scaling",
        "schedule",
    )  # fmt: skip
    found |= {k: (manifest.options or {}).get(k) for k in _OF_STEP}
    return {**found, **{k: getattr(manifest, k) for k in others}, **_rate(manifest, rate)}


def _group(entry: Mapping[str, Any]) -> str:
    """Returns the text of a group: its glob, its options and its factor of the rate."""
    options = {k: v for k, v in entry["optimizer"].items() if k not in ("name", "lr")}
    return json.dumps({entry["glob"]: {**options, "factor": entry.get("factor", 1.0)}})


def _rate(manifest: Manifest, rate: Rate) -> dict[str, Any]:
    if manifest.schedule is not None:
        return {}
    if isinstance(rate, Schedule):
        return {"rate": rate.to_dict()}
    name = getattr(rate, "__qualname__", type(rate).__name__)
    return {"rate": f"{FUNCTION}{name}" if callable(rate) else float(rate)}


def _formula(program: Program) -> str:
    """Returns a digest of the nodes, independent of their order."""
    nodes = sorted(hashlib.sha256(text).digest() for text in _nodes(program.main))
    return hashlib.sha256(b"".join(nodes)).hexdigest()[:16]


def _nodes(block: BindingBlock) -> Iterable[bytes]:
    for b in block.bindings:
        names = [*names_of(b.inputs), "", *names_of(b.outputs)]
        attributes = [a.SerializeToString(deterministic=True) for a in b.node.attribute]
        yield repr((b.domain, b.op, names, attributes)).encode()


def facts_in(stored: Mapping[str, str], where: str) -> dict[str, Any]:
    """Returns the facts in a checkpoint; none if another program wrote it. Raises InputError."""
    try:
        found = json.loads(stored.get("run", "{}"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{where}: 'run' is not a JSON object: it is damaged")
    return found


def fitting(
    values: Mapping[str, Array], own: Mapping[str, Array], manifest: Manifest, *, every: bool
) -> Mapping[str, Array]:
    """Returns the values for a step. Sums over micro-batches may be missing, because they are zeros
    between two steps. With `every`, values that are missing or have another type come from `own`.
    """
    sums = {fed.name for fed in manifest.of_role("accumulated", "counted")}
    if not every and values.keys() == own.keys():
        return values
    found: dict[str, Array] = {} if every else dict(values)
    if not every and not sums:
        found = {k: a for k, a in found.items() if not k.endswith(".accumulated")}
    for name, array in own.items():
        given = values.get(name)
        if given is None or given.shape != array.shape or given.dtype != array.dtype:
            if every or (given is None and name in sums):
                found[name] = array
        else:
            found[name] = given
    return found


def differences(before: Facts, now: Facts) -> dict[str, tuple[Any, Any]]:
    """Returns the facts that both have and that differ."""
    now = json.loads(json.dumps(now))  # as a file stores them
    return {k: (before[k], v) for k, v in now.items() if k in before and before[k] != v}


def check_same_run(
    changes: Mapping[str, tuple[Any, Any]], stands: Progress, where: str, *, same_values: bool
) -> None:
    """Raises InputError if a run with progress `stands` cannot continue with these changes.

    same_values: whether step and checkpoint have the same values by name. If not, every change is
    refused, except for the rate and the schedule.
    """
    fixed = {*_IDENTITY, *(("accumulate", "accumulate_by") if stands.micro else ())}
    fixed |= set() if same_values else changes.keys() - {"rate", "schedule"}
    wrong = {k: v for k, v in changes.items() if k in fixed or (stands.batches and of_an_epoch(k))}
    if not wrong:
        return
    of_epoch = same_values and not set(wrong) & set(_IDENTITY)
    when = "" if not of_epoch else f", in the middle of epoch {stands.epoch + 1}"
    raise InputError(
        f"{where} belongs to another run{when}: {_listed(wrong)}: "
        f"{option('choose another --folder, or continue with --force', 'force=True continues')}"
    )


def of_an_epoch(key: str) -> bool:
    """Whether a fact decides which examples are in the batches of an epoch."""
    return key.split(" of ")[0] in _OF_AN_EPOCH


def continuation(changes: Mapping[str, tuple[Any, Any]], where: str) -> str:
    """Returns one line about changes that the run accepts."""
    return f"{where} continues with {_listed(changes)}"


def _listed(changes: Mapping[str, tuple[Any, Any]]) -> str:
    parts = []
    known = any(_are_arrays(key, pair) for key, pair in changes.items())
    for key, (before, now) in changes.items():
        if known and key in ("arrays", "examples"):  # said with the shapes
            continue
        if _are_arrays(key, (before, now)):
            subject = _WORDS.get(key.split(" of ")[0], key)
            parts.append(f"{subject}: {_changed_arrays(before or {}, now or {})}")
            continue
        if isinstance(before, list) and isinstance(now, list):
            both = {*map(str, before)} & {*map(str, now)}
            before, now = ([x for x in each if str(x) not in both] for each in (before, now))
        name = _WORDS.get(key, key.replace("_", " "))
        parts.append(f"{name} {_short(now)} (was {_short(before)})")
    return ", ".join(parts)


def _are_arrays(key: str, pair: tuple[Any, Any]) -> bool:
    """Whether a fact has the texts of `sampled` by the names of arrays, before and now."""
    known = key.split(" of ")[0] in ("samples", "constants", HELD_OUT)
    return known and all(value is None or isinstance(value, Mapping) for value in pair)


def _changed_arrays(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Returns the changes of arrays in words."""
    parts, other = [], []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old is None or new is None:
            parts.append(f"'{name}' is {'new' if old is None else 'missing'}")
        elif old != new:
            was, is_now = (text.rpartition(" ")[0] for text in (old, new))
            other += [f"'{name}'"] * (was == is_now)
            parts += [f"'{name}' is {is_now} (was {was})"] * (was != is_now)
    parts += [f"other values in {', '.join(other)}"] * bool(other)
    return " and ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        options = ",".join(f"{k}={v}" for k, v in value.items() if k != "name")
        text = f"{value.get('name', '')}{{{options}}}"
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    text = text if text not in ("", "None") else "none"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
