"""`frozen`: a frozen dataclass that is defined in a quarter of the time.

`dataclass(frozen=True)` generates and compiles six methods for each class. Only `__init__` needs
that, because its signature lists the fields; here the others are closures. A command imports two
hundred such classes before its work starts. A class from which users derive frozen dataclasses is
`dataclass(frozen=True)`, because Python lets none derive from a class of `frozen`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # of `typing` since Python 3.11
else:

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        """Does nothing: only type checkers read it."""
        return lambda decorator: decorator


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, /, *, kw_only: bool = False, eq: bool = True) -> Any:
    """Makes a class a dataclass whose fields are set once. The options are those of `dataclass`."""
    if cls is None:
        return lambda cls: _made(cls, kw_only, eq)
    return _made(cls, kw_only, eq)


def _made(cls: Any, kw_only: bool, eq: bool) -> Any:
    written = {name for name, value in vars(cls).items() if value is not None}
    cls.__doc__ = cls.__doc__ or cls.__name__  # else dataclass computes its signature
    inherited = [getattr(b, "__dataclass_params__", None) for b in cls.__mro__[1:]]
    inherits = any(params is not None and params.frozen for params in inherited)
    made = dataclass(repr=False, eq=False, frozen=inherits, kw_only=kw_only)(cls)
    methods: dict[str, Any] = {}
    if not inherits:
        methods = {"__setattr__": _set_once, "__delattr__": _keep}
    if "__repr__" not in written:
        methods["__repr__"] = _repr
    if eq:
        found = fields(made)
        if "__eq__" not in written:
            methods["__eq__"] = _equal(_values([f.name for f in found if f.compare]))
        if "__hash__" not in written:
            hashed = [f.name for f in found if (f.compare if f.hash is None else f.hash)]
            methods["__hash__"] = _hash(_values(hashed))
    for name, method in methods.items():
        setattr(made, name, method)
    return made


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that returns these attributes of an object."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equal(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _set_once(self: Any, name: str, value: object) -> None:
    """Sets a field that has no value yet, as `__init__` does."""
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = value


def _keep(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
