"""Records every built-in law on random models of its pattern, redraws the weights, and compares.

    python scripts/sweep_rebase.py --minutes 10 --seed 0

Every second model runs through the default pipeline instead. While a record is kept, every byte of
the result must be as without. The weights are then permuted, and their signs changed, three times.
Unless a fact about weights no longer holds, the optimised model with the computed constants must be
equal in float64 to the original with these weights: a law that goes round the record would leave a
constant as it was. Prints the counts; exit code 1 if something failed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import InputError, Unsupported  # noqa: E402  # runs from a checkout
from onnxgrad.ir.load import load_own  # noqa: E402
from onnxgrad.ir.program import Program  # noqa: E402
from onnxgrad.ir.protobufs import copy_of, elements  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.jobs.rebasing.constants import set_elements  # noqa: E402
from onnxgrad.jobs.rebasing.outline import constants_of, initializers  # noqa: E402
from onnxgrad.jobs.rebasing.record import PredicateFailed, Record  # noqa: E402
from onnxgrad.jobs.rebasing.recording import Recording  # noqa: E402
from onnxgrad.passes.fold_constant import FoldConstant  # noqa: E402
from onnxgrad.passes.pipeline import Pipeline  # noqa: E402
from onnxgrad.rewrite.trace import Trace  # noqa: E402
from onnxgrad.verify.reference.evaluate import Reference  # noqa: E402
from scripts.sweep_laws import Law, laws  # noqa: E402
from scripts.sweeping.command import Tally, command, sweep_models  # noqa: E402
from scripts.sweeping.from_patterns import feeds_of, model_for, sizes_of  # noqa: E402

_OFF = 5e-2  # of the largest number: dtypes of half precision are among them
_REDRAWS = 3


def sweep(
    seed: int, *, models: int = 0, minutes: float = 1e9, save: Path | None = None
) -> tuple[Mapping[str, int], list[str]]:
    """Checks up to `models` models within `minutes`: the laws in turns. `save` is unused."""
    every = laws()

    def judge(number: int, tally: Tally) -> None:
        law, turn = every[number % len(every)], number // len(every)
        rng = Random(f"{seed}/{law.name}/{turn}")
        model = _model(law, rng)
        if model is not None:
            _judge(law, model, rng, tally, whole=turn % 2 == 1)

    return sweep_models(judge, seed, models or len(every), minutes)


def _model(law: Law, rng: Random) -> ModelProto | None:
    needs = getattr(law.law, "needs", None)
    for _ in range(12):
        opset = rng.choice(range(needs[1] if needs else 7, 27))
        made = model_for(law.law.pattern, rng, opset, shared=law.shared)
        try:
            if made is not None:
                load_own(made)
                return made
        except InputError:  # what onnx's checker lets pass, the reader need not
            continue
    return None


def _judge(law: Law, model: ModelProto, rng: Random, tally: Tally, *, whole: bool) -> None:
    plain, recorded = load_own(model), load_own(model)
    trace, recording = Trace(), Recording(recorded)
    trace.derivations = recording.derivations
    for program, own in ((plain, Trace()), (recorded, trace)):
        if whole:
            Pipeline.of(merge="always").run(program, own)
        else:
            law.apply(program, own)
            FoldConstant(max_share=1e6).run(program, own)
    if to_proto(plain) != to_proto(recorded):
        tally.fail(law.name, "a record changes the result")
        return
    if not trace.rewrites:
        return
    tally.counts["recorded"] += 1
    _redraw(law, model, recorded, recording.finish(rounded=False), rng, tally)


def _redraw(
    law: Law, model: ModelProto, after: Program, record: Record, rng: Random, tally: Tally
) -> None:
    feeds, sizes = feeds_of(model, rng), sizes_of(model)
    for _ in range(_REDRAWS):
        original, result = copy_of(model), to_proto(after)
        values = {name: redrawn(elements(t), rng) for name, t in initializers(model)}
        for name, tensor in initializers(original):
            if name not in record.fixed:
                set_elements(tensor, values[name])
        places = dict(constants_of(result))
        try:
            for name, array in record.constants(values.__getitem__):
                set_elements(places[name], array)
        except PredicateFailed:
            tally.counts["a fact failed"] += 1
            continue
        try:
            expected = Reference(original).run(feeds)
        except (Unsupported, InputError):
            continue
        if all(np.shape(v) == sizes[name] for name, v in expected.items()):
            tally.counts["compared"] += 1
            _compare(expected, Reference(result).run(feeds), law, tally)


def _compare(expected: Mapping[str, Any], found: Mapping[str, Any], law: Law, tally: Tally) -> None:
    for name, value in expected.items():
        a, b = (np.asarray(v, np.float64) for v in (value, found[name]))
        known = np.isfinite(a)
        off = np.abs(a[known] - b[known]).max(initial=0.0) if a.shape == b.shape else np.inf
        if not off <= _OFF * max(1.0, np.abs(a[known]).max(initial=0.0)):
            tally.fail(law.name, f"is stale: {name} is off by {off:.3g}")


def redrawn(array: Any, rng: Random) -> Any:
    """Returns the elements of a float array in another order, most of them with other signs; single
    numbers half of the time as they are.
    """
    if array.dtype.kind in "biuOS" or not array.size or (array.size == 1 and rng.random() < 0.5):
        return array
    draws = np.random.default_rng(rng.getrandbits(32))
    mixed = draws.permutation(array.reshape(-1)).reshape(array.shape)
    if rng.random() < 0.3:
        return mixed
    return (mixed * draws.choice([1, -1], size=array.shape)).astype(array.dtype)


if __name__ == "__main__":
    sys.exit(command(sweep, __doc__))
