"""The Python function of a job: the options of its declaration as keywords, in signature, checks
and documentation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from onnxgrad.errors import InputError
from onnxgrad.jobs.declared import REQUIRED, Declaration, options_of
from onnxgrad.options import (
    callable_by,
    called,
    check_argument,
    resolved,
    unknown_keyword,
)

F = TypeVar("F", bound=Callable[..., Any])


def from_keywords(cls: type[Declaration]) -> Callable[[F], F]:
    """Returns a decorator that replaces the parameter `options` of a function by the keywords of
    the declaration; other parameters stay. Unknown and missing arguments raise InputError. If work
    on an invalid model fails unexpectedly, the error names the model's fault.
    """

    def deciding(function: F) -> F:
        signature, owner = _signature(function, cls), called(function)
        known = callable_by(signature.parameters.values())
        declared = {o.name for o in options_of(cls)}

        @functools.wraps(function)
        def calling(*args: Any, **keywords: Any) -> Any:
            for name in keywords:
                if name not in known:
                    raise unknown_keyword(owner, name, known)
            try:
                given = signature.bind(*args, **keywords).arguments
            except TypeError as error:
                raise InputError(f"{owner}: {error}") from None
            options = cls.from_settings({k: v for k, v in given.items() if k in declared})
            rest = {k: v for k, v in given.items() if k not in declared}
            for name, value in rest.items():
                if name in known:
                    kind = resolved(signature.parameters[name].annotation, function.__module__)
                    check_argument(kind, value, f"{owner}: {name}")
            with _faults_named(_models(signature, rest)):
                return function(**rest, options=options)

        calling.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
        calling.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_listed(cls)}\n"
        return cast(F, calling)

    return deciding


@contextmanager
def _faults_named(models: Iterable[Any]) -> Iterator[None]:
    """Turns an unexpected error into one that names the fault of a model, if one has a fault."""
    try:
        yield
    except Exception as error:
        from onnxgrad.verify.blame import blamed  # imports numpy and onnx

        fault = blamed(models, error)
        if fault is None:
            raise
        raise fault from error


def _models(signature: inspect.Signature, given: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the models among the arguments of a function."""
    for name, value in given.items():
        if "ModelLike" in str(signature.parameters[name].annotation) and value is not None:
            several = isinstance(value, (list, tuple, Mapping))
            yield from (
                (value.values() if isinstance(value, Mapping) else value) if several else [value]
            )


def _signature(function: Callable[..., Any], cls: type[Declaration]) -> inspect.Signature:
    own = inspect.signature(function)
    places = {True: inspect.Parameter.POSITIONAL_OR_KEYWORD, False: inspect.Parameter.KEYWORD_ONLY}
    declared = [
        inspect.Parameter(
            o.name,
            places[o.positional],
            annotation=o.annotation,
            default=inspect.Parameter.empty if o.default is REQUIRED else o.default,
        )
        for o in options_of(cls)
    ]
    others = [p for p in own.parameters.values() if p.name != "options"]
    # positional parameters without a default come first
    together = sorted(
        [*others, *declared],
        key=lambda p: (p.kind, p.kind is not p.KEYWORD_ONLY and p.default is not p.empty),
    )
    return own.replace(parameters=together)


def _listed(cls: type[Declaration]) -> str:
    return "\n".join(["Options:", *(f"    {o.name}: {o.help}" for o in options_of(cls))])
