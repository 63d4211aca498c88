"""Hostile files and options through the command line: correct, or one line and the right exit code, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from tests.hostile.running import COMMANDS, QUICK, Job, every, sweep


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
    assert failures(in_turns(dict(QUICK), 23)) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_hostile_file_through_a_command() -> None:
    jobs = in_turns(dict(COMMANDS), 1)
    assert len(jobs) >= 250
    assert failures(jobs) == []


def test_the_sweep_sees_what_goes_wrong() -> None:
    """Here a file that nothing was to write."""
    model = next(job for job in every(["?"]) if job.title == "opsets: IR 1").content
    (left,) = sweep([Job("left behind", model, (), ("place", "model.onnx", "-o", "other.onnx"))])
    assert "left behind" in left[2]
