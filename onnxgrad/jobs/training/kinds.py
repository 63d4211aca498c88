"""Reads and checks values of training options that are neither plain numbers nor words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.jobs.kinds import Word


class ByGlob:
    """Optimisers by globs of weights; the first glob that matches decides."""

    def read(self, text: str, flag: str) -> tuple[str, str]:
        glob, _, optimizer = text.partition("=")
        if not glob or not optimizer:
            raise InputError(f"{flag} {text[:80]}: write GLOB=NAME or GLOB=NAME{{option=value}}")
        return glob, optimizer

    def join(self, values: Sequence[tuple[str, str]], _: str) -> tuple[tuple[str, str], ...]:
        return tuple(values)


class Examples(Word):
    """Batches, or the arrays from which batches are cut."""

    what = "arrays by name, an .npz of them, a list of batches, or a function that makes them"

    def check(self, value: Any, where: str) -> Any:
        known = isinstance(value, (Iterable, os.PathLike)) or callable(value)
        if isinstance(value, (bytes, bytearray)) or not (known or hasattr(value, "epoch")):
            raise InputError(f"{where} must be {self.what}, not {type(value).__name__}")
        return value


class ExamplesOrShare(Examples):
    """Held-out examples, or the share of the training data that is held out."""

    what = f"{Examples.what}, or a number strictly between 0 and 1"

    def check(self, value: Any, where: str) -> Any:
        share: Any = value if isinstance(value, Real) else None
        if isinstance(value, str) and not os.path.exists(value):
            with suppress(ValueError):
                share = float(value)
        if share is None:
            return super().check(value, where)
        if isinstance(share, bool) or not 0 < share < 1:
            raise InputError(f"{where} must be {self.what}, not {value}")
        return float(share)


class OneOrMore:
    """One word or number, or a tuple of them."""

    def check(self, value: Any, where: str) -> tuple[Any, ...] | None:
        return value if value is None or isinstance(value, tuple) else (value,)

    def join(self, values: Sequence[Any], _: str) -> tuple[Any, ...]:
        return tuple(values)


class RateOrText(Word):
    """A learning rate, a schedule, or a function of the step's number."""

    what = "a number, the text of a schedule, or a function of the step's number"

    def check(self, value: Any, where: str) -> Any:
        if isinstance(value, bool) or not (isinstance(value, (str, Real)) or callable(value)):
            raise InputError(f"{where} must be {self.what}, not {repr(value)[:80]}")
        return value


class Function:
    """A function that the caller passes."""

    what = "a function"

    def check(self, value: Any, where: str) -> Any:
        if not callable(value):
            raise InputError(f"{where} must be {self.what}, not {repr(value)[:80]}")
        return value


class Scales:
    """Factors by the names of inputs."""

    def read(self, text: str, flag: str) -> tuple[str, float]:
        name, _, number = text.rpartition("=")
        over, _, under = number.partition("/")
        try:
            return name, float(over) / float(under or 1)
        except (ValueError, ZeroDivisionError):
            raise InputError(
                f"{flag} {text[:80]}: write NAME=NUMBER, such as {flag} x=1/255"
            ) from None

    def join(self, values: Sequence[tuple[str, float]], _: str) -> dict[str, float]:
        return dict(values)


class MetricsByName(Word):
    """Metrics by name, or texts of metrics, each of which is its own name."""

    def join(self, values: Sequence[str], _: str) -> tuple[str, ...]:
        return tuple(values)
