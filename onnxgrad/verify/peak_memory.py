"""How much memory models take at most, each in a process of its own, on the same inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from onnxgrad.errors import InputError
from onnxgrad.limits import bounded
from onnxgrad.verify.feeds.proof_cases import Inputs, choose_cases
from onnxgrad.verify.running.session import open_session
from onnxgrad.verify.subject import subject


@bounded
def peak_memory(
    models: Mapping[str, str | os.PathLike[str]],
    *,
    inputs: Inputs | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    provider: str = "cpu",
    threads: int = 1,
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> dict[str, int | None]:
    """Bytes by label: what loading a file and one run take beyond onnxruntime itself. On the CPU
    these are resident bytes, which on small models vary by some 100 kB from run to run, and None on
    systems that do not tell; on a device they are those of onnxruntime's arena there.

    The inputs are those that the first model takes, given or generated from `seed` as for `verify`.
    `timeout` and `max_memory` as for `verify`. Raises InputError where there is no model, the first
    does not run, or a device's memory is not counted; RunFailed where another does not run.
    """
    if not models:
        raise InputError("peak_memory needs at least one model")
    sessions = {
        name: open_session(model, provider=provider, threads=threads)
        for name, model in models.items()
    }
    first = next(iter(models))
    chosen = choose_cases(
        subject(models[first]).proto, inputs, dims, (seed,), sessions[first].run, edges=False
    )[0]
    return {name: session.peak_memory(chosen.feeds) for name, session in sessions.items()}
