"""The arguments of `verify` stand once: their names and defaults are those of the job."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from onnxgrad.errors import InputError
from onnxgrad.jobs.declarations import VerifyOptions
from onnxgrad.jobs.declared import options_of
from onnxgrad.verify.request import Request

INNER = {"early", "runtime", "keep", "by_regions", "scales"}  # those of a proof inside another


def test_the_job_has_these_arguments_and_defaults() -> None:
    plain = Request()
    ours = {f.name: getattr(plain, f.name) for f in fields(Request) if f.init}
    theirs = {o.name: o.default for o in options_of(VerifyOptions)}
    assert ours.keys() - theirs.keys() == INNER
    assert {name: ours[name] or None for name in theirs} == {
        name: default or None for name, default in theirs.items()
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checks": ()}, "no check was chosen"),
        ({"checks": ("float32",)}, "unknown check 'float32'"),
        ({"seeds": ()}, "at least one seed"),
        ({"provider": "tpu"}, "unknown provider"),
        ({"coverage": "most"}, "write a share"),
        ({"metric": "cosine"}, "metric"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Request(**options)


def test_an_unknown_argument_is_an_error() -> None:
    with pytest.raises(TypeError, match="seed"):
        Request(seed=0)


def test_the_float64_check_runs_for_the_first_provider_alone() -> None:
    request = Request(provider="cpu,cuda", coverage=">= 90%", layers=True)
    other = request.on("cuda")
    assert (request.providers, request.share) == (["cpu", "cuda"], 0.9)
    assert (other.settings.provider, other.checks, other.share) == ("cuda", ("onnxruntime",), None)
    assert not other.layers and Request(provider="cpu,cuda", checks="float64").providers == ["cpu"]


def test_requests_for_the_same_runs_are_alike() -> None:
    request = Request(seeds=(0, 1), coverage=0.5)
    assert request.alike(Request(seeds=[0, 1], layers=True))
    assert not request.alike(replace(request, threads=2))
    assert not request.alike(replace(request, float64_budget=1.0))
