"""Hostile files and options through the command line: correct, or one line and the right exit code, and nothing else."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest

from tests.hostile.damage import edits, mutant
from tests.hostile.operands import mutant as mutant_operands
from tests.hostile.operands import single_nodes
from tests.hostile.running import COMMANDS, FUNCTIONS, IN_PYTHON, PROVING, QUICK, Job, every, sweep
from tests.hostile.seeds import seeds
from tests.hostile.structure import mutants


def failures(jobs: list[Job]) -> list[str]:
    return [f"{job.title} | {command} | {wrong}" for job, command, wrong in sweep(jobs)]


def in_turns(commands: dict[str, object], step: int) -> list[Job]:
    """Every `step`-th file, each through one command."""
    names = list(commands)
    jobs = list(every(["?"]))[::step]
    return [
        dataclasses.replace(job, commands=(names[i % len(names)],)) if job.commands else job
        for i, job in enumerate(jobs)
    ]


def test_some_hostile_files() -> None:
    """And the sweep sees what goes wrong: here, in the same process, a file that nothing was to write."""
    model = next(job for job in every(["?"]) if job.title == "opsets: IR 1").content
    wrong = Job("left behind", model, (), ("place", "model.onnx", "-o", "other.onnx"))
    (found,) = failures([*in_turns(dict(QUICK), 23), wrong])
    assert found.startswith("left behind | ") and "left behind: ['room/other.onnx']" in found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_hostile_file_through_a_command() -> None:
    jobs = in_turns(dict(COMMANDS), 1)
    assert len(jobs) >= 250
    assert failures(jobs) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("commands", [QUICK, PROVING], ids=["quick", "proving"])
def test_damaged_models(commands: dict[str, object]) -> None:
    rng, models, names = random.Random(0), sorted(seeds()), list(commands)
    jobs = []
    for i in range(300 if commands is QUICK else 60):
        name, data = models[i % len(models)]
        jobs.append(
            Job(
                f"{name} {i}",
                mutant(data, edits(rng, data)),
                (names[i // len(models) % len(names)],),
            )
        )
    assert failures(jobs) == []


def edited(numbers: Iterable[int], each: int) -> list[Job]:
    """Mutants of the protobuf, each through some commands and functions in turns."""
    names = [*COMMANDS, *(IN_PYTHON + name for name in FUNCTIONS)]
    jobs = []
    for number, (title, data) in zip(numbers, mutants(numbers), strict=True):
        chosen = random.Random(-number).sample(names, each)
        jobs.append(Job(title, data, tuple(chosen)))
    return jobs


def test_some_edited_models() -> None:
    """And the sweep sees what a function raises: here, one that is none of ours."""
    (first,) = edited([0], 1)
    wrong = dataclasses.replace(first, title="wrong", commands=(f"{IN_PYTHON}nothing",))
    assert failures([*edited(range(0, 2000, 133), 1), wrong]) == [
        f"wrong | {IN_PYTHON}nothing | exit KeyError: 'nothing': "
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_edited_model() -> None:
    """`scripts/sweep_hostile.py --edits 2000` runs all commands on all of them."""
    assert failures(edited(range(2000), 2)) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_operands_that_are_not_what_the_operator_takes() -> None:
    rng, nodes = random.Random(0), single_nodes()
    jobs = []
    for i in range(300):
        seed = rng.choice(nodes)
        jobs.append(
            Job(
                f"{seed.name} {i}",
                mutant_operands(rng, seed),
                ("params" if i % 4 == 0 else "grad",),
            )
        )
    assert failures(jobs) == []
