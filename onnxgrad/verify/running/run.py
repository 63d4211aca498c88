"""Running models in onnxruntime, in a pooled child process.

onnxruntime can kill its process (SIGFPE while folding INT64_MIN / -1), hang or eat the memory, so
it runs where that costs nothing: a child that is started once, reused, limited in time and memory,
and killed at exit. A child that dies means `RunFailed`, never the end of us.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxgrad.limits import SECONDS
from onnxgrad.verify.running.model_source import Model
from onnxgrad.verify.running.session import open_session
from onnxgrad.verify.values import Feeds, Value


def run_many(
    model: Model,
    list_of_feeds: Iterable[Feeds],
    *,
    provider: str = "cpu",
    optimize: bool = True,
    threads: int = 1,
    outputs: Sequence[str] | None = None,
    timeout: float = SECONDS,
    session_options: Mapping[str, str] = {},
) -> list[dict[str, Value]]:
    """`run` for several feeds over one session."""
    session = open_session(
        model,
        provider=provider,
        optimize=optimize,
        threads=threads,
        session_options=session_options,
        timeout=timeout,
    )
    return [session.run(feeds, outputs=outputs, timeout=timeout) for feeds in list_of_feeds]


def run(
    model: Model,
    feeds: Feeds,
    *,
    provider: str = "cpu",
    optimize: bool = True,
    threads: int = 1,
    outputs: Sequence[str] | None = None,
    timeout: float = SECONDS,
    session_options: Mapping[str, str] = {},
) -> dict[str, Value]:
    """Run a model once in onnxruntime and answer its outputs by name.

    Raises InputError for a missing provider or input, RunFailed when onnxruntime refuses, dies, or
    exceeds `timeout` seconds.
    """
    return run_many(
        model, [feeds], provider=provider, optimize=optimize, threads=threads, outputs=outputs,
        timeout=timeout,
        session_options=session_options,
    )[0]  # fmt: skip
