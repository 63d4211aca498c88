"""Chooses the engine that runs a step."""

from __future__ import annotations

from onnxgrad.errors import InputError
from onnxgrad.train.engines.base import Engine
from onnxgrad.train.engines.blocks import BlocksEngine, fits
from onnxgrad.train.engines.data_parallel import DataParallel
from onnxgrad.train.engines.graph import GraphEngine
from onnxgrad.train.step import TrainingStep
from onnxgrad.vocabulary import EngineName


def open_engine(
    step: TrainingStep, name: EngineName, provider: str, threads: int | None, parallel: bool
) -> Engine:
    """Returns the engine with that name, or with `parallel` one for all processes that mpiexec
    started. Raises InputError if it cannot run this step.
    """
    can = provider == "cpu" and fits(step)
    if (name == "blocks" or parallel) and not can:
        who, instead = (
            ("data_parallel", "train in one process")
            if parallel
            else ('engine="blocks"', 'choose engine="graph"')
        )
        raise InputError(
            f"{who} runs on the CPU, with an optimiser of this package that works element by "
            f"element, one dtype for all parameters and no scale of a quantisation: {instead}"
        )
    if parallel and name == "graph":
        raise InputError('data_parallel averages outside of the graph: leave out engine="graph"')
    if parallel:
        return DataParallel(step, threads=threads)
    if name == "blocks" or (name == "auto" and can):
        return BlocksEngine(step, threads=threads)
    return GraphEngine(step, provider=provider, threads=threads)
