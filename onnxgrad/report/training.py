"""The text of `train-step` and of `fit`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.grad.weights.copies import weights_of
from onnxgrad.jobs.training.fit import Fitted
from onnxgrad.report.gradient import check_lines, nodes
from onnxgrad.report.parts import Part, Text, cell, number, seconds_text, table
from onnxgrad.results import Plain
from onnxgrad.train.callbacks import RangeTest
from onnxgrad.train.engines.session import sizes_of
from onnxgrad.train.labels import positive_weight, read_by_model, weighs_examples
from onnxgrad.train.manifest import Fed, Role
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.update.emission import fed_of
from onnxgrad.wording import counted, first_of, shape_text

_WIDEST = 20  # classes of a table in the terminal


@frozen
class StepMade(Plain):
    """A training step, the seconds it took, and the check of its gradient, if any."""

    json_keys = (
        "parameters=names.parameter states=names.state batch=names.batch "
        "loss=step.manifest.loss optimizer=step.manifest.optimizer notes=step.notes "
        "nodes=node_count seconds check"
    )

    step: TrainingStep
    seconds: float
    check: GradientReport | None

    @property
    def names(self) -> SimpleNamespace:
        """The names of the inputs of a step by their role: parameter, state, batch."""
        manifest = self.step.manifest
        roles: tuple[Role, ...] = ("parameter", "state", "batch")
        return SimpleNamespace(**{r: [fed.name for fed in manifest.of_role(r)] for r in roles})

    @property
    def node_count(self) -> int:
        """The number of nodes of the step."""
        return nodes(self.step.train)

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """Yields the trained weights, the inputs of a batch, the size, and the check."""
        manifest = self.step.manifest
        parameters, states = manifest.of_role("parameter"), manifest.of_role("state")
        initial = self.step.initial
        count, kept = (sum(initial[f.name].size for f in feds) for feds in (parameters, states))
        yield cell(
            f"{manifest.optimizer['name']} on {counted(len(parameters), 'weight')} of "
            f"{counted(count, 'number')}, {number(kept)} more in {counted(len(states), 'state')}"
        )
        yield table("a batch holds", "type", rows=map(_typed, manifest.of_role("batch")))
        if verbose:
            yield table("trained", "type", rows=map(_typed, parameters))
        yield from (cell(f"note: {note}") for note in self.step.notes)
        yield (
            f"{counted(nodes(self.step.train), 'node')}, opset {self.step.train.opset}, built in "
            f"{seconds_text(self.seconds)}"
        )
        if self.check is not None:
            yield from check_lines(self.check, verbose, self.step.notes)


def batch_parts(step: TrainingStep) -> Iterator[Part]:
    """Yields the arrays of a batch, and which of them are labels: those with classes, and those on
    which only the loss depends.
    """
    of_model, rows = read_by_model(step), []
    for fed in step.manifest.of_role("batch"):
        labels = fed.classes is not None or fed.name not in of_model
        classes = "" if fed.classes is None else f", 0 to {fed.classes - 1}"
        ignored = "" if fed.ignored is None else f" or {fed.ignored} (ignored)"
        moved = f", each of the score {counted(fed.unread, 'place')} before" if fed.unread else ""
        numbers = [f"{w:.7g}" for w in fed.weights or ()]
        weights = f", weight=[{first_of(numbers, 16)}]" if numbers else ""
        positive = positive_weight(fed.name, step.manifest.objective)
        weights += f", pos_weight={positive}" if positive else ""
        read = f"labels{classes}{ignored}{moved}{weights}" if labels else "input"
        if weighs_examples(fed.name, step.manifest.objective):
            read = "weights of examples"
        rows.append((*_typed(fed), f"earlier value of {fed.of}" if fed.of else read))
    yield table("a batch holds", "type", "read as", rows=rows)


def weight_parts(step: TrainingStep, verbose: bool = False) -> Iterator[Part]:
    """Yields the numbers of trained and frozen weights of the step, with their elements; with -v
    each of them. Constants of the loss are left out.
    """
    of_model = read_by_model(step)
    frozen = [v for v in weights_of(step.evaluation) if v.name in of_model]
    kinds = {
        "trained": step.manifest.of_role("parameter"),
        "running statistics": step.manifest.running(),
        "frozen": [fed_of(v, "parameter") for v in frozen],
    }
    rows = [
        (kind, number(len(feds)), number(sum(math.prod(sizes_of(fed)) for fed in feds)))
        for kind, feds in kinds.items()
        if feds or kind != "running statistics"
    ]
    yield table("weights", ">arrays", ">elements", rows=rows)
    if verbose:
        each = [(*_typed(fed), kind) for kind, feds in kinds.items() for fed in feds]
        yield table("weight", "type", "is", rows=each)


def fitted_parts(fitted: Fitted, verbose: bool = False) -> Iterator[Part]:
    """Yields a row per epoch: the mean loss of its steps, and the results on held-out data."""
    losses: dict[int, list[float]] = {}
    held: dict[int, Mapping[str, float]] = {}
    for event in fitted.history.events:
        if event.evaluation is None:
            losses.setdefault(event.epoch, []).append(event.loss)
        else:
            held[event.epoch] = event.evaluation
    names = list(dict.fromkeys(name for found in held.values() for name in found))
    columns = (">epoch", ">steps", ">loss", *(f">held-out {name}" for name in names))
    yield table(
        *columns,
        rows=(
            (
                str(epoch + 1),
                number(len(found)),
                f"{math.fsum(found) / len(found):.5g}",
                *(f"{held[epoch][n]:.5g}" if n in held.get(epoch, {}) else "" for n in names),
            )
            for epoch, found in losses.items()
        ),
    )
    speed = len(fitted.history.losses) / fitted.seconds if fitted.seconds else 0.0
    yield (
        f"{counted(fitted.steps, 'step')} in all, {number(len(fitted.history.losses))} now in "
        f"{seconds_text(fitted.seconds)} ({speed:.1f} a second)"
    )
    if none := fitted.history.without_labels:
        yield (
            f"no label counts in {counted(none, 'batch', 'batches')}, whose loss and gradient are "
            "0: labels are ignored by ignore_index, or their class has the weight 0"
        )
    if fitted.averaged:
        yield "held-out results, predictions and the model are those of the averaged weights"
    if fitted.history.best is not None and fitted.history.last is not None:
        yield _compared(fitted, fitted.history.best, fitted.history.last)
    for name, counts in (fitted.confusion or {}).items():
        yield from _confusion(name, counts)


def range_parts(test: RangeTest) -> Iterator[Part]:
    """Yields losses by their rates, and the rate at which the loss falls most."""
    events, means = test.history.events, test.means
    shown = range(0, len(events), max(len(events) // 12, 1))
    rows = [(f"{events[i].rate:.2g}", f"{events[i].loss:.5g}", f"{means[i]:.5g}") for i in shown]
    yield table(">rate", ">loss", ">moving mean", rows=rows)
    found = "the loss falls at no rate"
    if test.steepest is not None:
        found = f"the loss falls most at a rate of {test.steepest:.2g}"
    yield cell(f"{counted(len(events), 'step')}: {found}")


def _confusion(name: str, counts: Sequence[Sequence[int]]) -> Iterator[Part]:
    """Yields the table of held-out labels by their predicted classes, unless it is too wide."""
    if len(counts) > _WIDEST:
        yield cell(f"{name}: the table of {len(counts)} classes is in the output of --json")
        return
    columns = (f">as {i}" for i in range(len(counts)))
    rows = [(f"label {i}", *map(number, row)) for i, row in enumerate(counts)]
    yield table(f"held-out {name}", *columns, rows=rows)


def _compared(fitted: Fitted, best: Mapping[str, float], last: Mapping[str, float]) -> Text:
    """Returns which weights were written, and the held-out results of these and of the others."""
    same = best["step"] == last["step"]
    none = math.isnan(best["loss"])
    found = _held_out("last and best" if same and not none else "last", last)
    found = found if same else f"{_held_out('best', best)}; {found}"
    kept = "last" if same else fitted.history.kept
    means = "averages of the " if fitted.averaged else ""
    wrote = "" if fitted.output is None else f"{fitted.output} has the {means}{kept} weights. "
    more = "; --keep best writes the best" if wrote and not same and kept == "last" else ""
    return cell(f"{wrote}Held out: {found}{more}")


def _held_out(which: str, found: Mapping[str, float]) -> str:
    numbers = ", ".join(f"{name} {x:.5g}" for name, x in found.items() if name != "step")
    return f"{which} (step {number(int(found['step']))}): {numbers}"


def _typed(fed: Fed) -> tuple[Text, Text]:
    """Returns the name of an input of a step, and its type."""
    sizes = "" if fed.shape is None else shape_text(fed.shape)
    return cell(fed.name), cell(f"{fed.dtype}{sizes}")
