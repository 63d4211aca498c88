"""The jobs of `ci` on the workers of a Dask cluster.

Workers read the models and write the results themselves. They must see the same files under the
same names, and have the same versions of packages. A worker process runs one job at a time.
"""

from __future__ import annotations

import logging
import platform
import threading
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import InputError, InternalError
from onnxgrad.jobs.ci.accepted import versions
from onnxgrad.jobs.ci.outcome import ModelOutcome
from onnxgrad.jobs.ci.work import Job, work
from onnxgrad.jobs.ci.workers import ATTEMPTS, died
from onnxgrad.wording import install, one_line, option

if TYPE_CHECKING:
    from distributed import Client

_CONNECTING = 20.0  # seconds
_one = threading.Lock()


def each_on(
    address: str, jobs: Sequence[Job], *, keep_going: bool = True
) -> Generator[tuple[int, ModelOutcome], None, None]:
    """Yields the index and outcome of every job as it ends on the cluster at `address`.

    Without `keep_going`, yields the jobs up to the first that fails, and later jobs that ended
    before it: their results are written. Closing the iterator cancels jobs that have not begun.
    Running jobs write their results completely or not at all.

    Raises InputError if no scheduler answers, or if a worker differs from this machine.
    """
    client = _connected(address)
    try:
        _check_workers(client, jobs)
        left = set(range(len(jobs)))
        for index, outcome in _outcomes(client, jobs):
            yield index, outcome
            left.discard(index)
            if not (outcome.ok or keep_going):
                left = {i for i in left if i < index}
            if not left:
                return
    finally:
        client.close()


def _connected(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"{option('--dask', 'dask')} needs Dask: {install('dask')}") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=_CONNECTING, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        why = one_line(error) or type(error).__name__
        dask = option("--dask", "dask")
        raise InputError(f"{dask}: no scheduler answers at {address}: {why}") from error


def _check_workers(client: Client, jobs: Sequence[Job]) -> None:
    ours = _versions()
    models = [job.path for job in jobs]
    strange, dask = client.run(_unlike, ours, models), option("--dask", "dask")
    if not strange:
        raise InputError(f"{dask}: the cluster has no workers: start some (`dask worker ADDRESS`)")
    for worker, why in sorted(strange.items()):
        if why:
            raise InputError(f"{dask}: the worker {worker} {why}")


def _versions() -> dict[str, str]:
    return {"Python": platform.python_version(), **versions()}


def _unlike(wanted: dict[str, str], models: list[str]) -> str:
    """Returns how this process differs from the caller, so that results could differ or fail; empty
    if it does not differ.
    """
    ours = _versions()
    for name in {**wanted, **ours}:
        here, there = ours.get(name, "none"), wanted.get(name, "none")
        if here != there:
            return f"has {name} {here}, this machine has {there}: install the same version"
    missing = next((path for path in models if not Path(path).is_file()), None)
    return "" if missing is None else f"does not see {missing}: workers must see the same files"


def _outcomes(
    client: Client, jobs: Sequence[Job]
) -> Generator[tuple[int, ModelOutcome], None, None]:
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    run = uuid.uuid4().hex
    names = [f"onnxgrad-ci-{run}-{index}" for index in range(len(jobs))]
    for name in names:
        _variable(name, client).set(0)
    futures: dict[Any, int] = {
        client.submit(_attempt, job, name, key=name, pure=False): index
        for index, (job, name) in enumerate(zip(jobs, names, strict=True))
    }
    try:
        for future in as_completed(list(futures), loop=client.loop):
            index = futures[future]
            error = future.exception()
            if error is None:
                yield index, future.result()
            elif isinstance(error, KilledWorker):  # the scheduler may allow fewer than ATTEMPTS
                yield index, died(jobs[index], _DIED)
            else:
                yield index, _broken(jobs[index], error)
    finally:
        client.cancel(list(futures))
        for name in names:
            _variable(name, client).delete()


_DIED = "died with its Dask worker"


def _broken(job: Job, error: BaseException) -> ModelOutcome:
    outcome = ModelOutcome(job.name, variant=job.variant)
    why = f"{type(error).__name__}: {one_line(error)}"
    outcome.fail("error", InternalError.exit_code, f"Dask could not run the job: {why}")
    return outcome


def _attempt(job: Job, name: str) -> ModelOutcome:
    """Calls `work` on a worker, unless the job has already killed `ATTEMPTS` workers. Dask would
    retry the job of a dead worker more often.
    """
    from distributed import get_client

    with _one:
        begun = _variable(name, get_client())
        count = int(begun.get())
        if count >= ATTEMPTS:
            return died(job, _DIED)
        begun.set(count + 1)
        return work(job)


def _variable(name: str, client: Client) -> Any:
    """Returns the cluster's counter of how often the job of that name was begun."""
    import distributed

    variable: Any = distributed.Variable
    return variable(name, client=client)
