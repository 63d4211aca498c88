"""`frozen`: the same dataclasses as those of `dataclass(frozen=True)`."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from onnxgrad.frozen import frozen

DECORATORS = [dataclass(frozen=True), frozen]


@frozen
class Point:
    """A point."""

    x: int
    y: float = 0.5


@dataclass(frozen=True)
class Base:
    """A base from which others derive `dataclass(frozen=True)`."""

    x: int = 1


@frozen
class Derived(Base):
    y: int = 2


def made(decorator: Any) -> Any:
    @decorator
    class Example:
        kind: ClassVar[str] = "example"
        name: str
        numbers: list[int] = field(default_factory=list, hash=False)
        hidden: int = field(default=0, compare=False, repr=False)

    return Example


@pytest.mark.parametrize("decorator", DECORATORS)
def test_equality_hash_and_text_follow_the_fields(decorator):
    cls = made(decorator)
    a = cls("a", [1], 2)
    assert a == cls("a", [1], 3) != cls("a", [2], 2)
    assert a != ("a", [1]) and a.__eq__("a") is NotImplemented
    assert hash(a) == hash(cls("a", [2], 3)) == hash(("a",))
    assert repr(a).endswith("Example(name='a', numbers=[1])")
    assert cls.__match_args__ == ("name", "numbers", "hidden")
    assert list(inspect.signature(cls).parameters) == ["name", "numbers", "hidden"]
    assert [f.name for f in fields(cls)] == ["name", "numbers", "hidden"]


@pytest.mark.parametrize("decorator", DECORATORS)
def test_fields_are_set_once(decorator):
    a = made(decorator)("a")
    for name in ("name", "other"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(a, name, "b")
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del a.name
    assert replace(a, name="b").name == "b" and a.name == "a"


@pytest.mark.parametrize("decorator", DECORATORS)
def test_methods_of_the_class_stay(decorator):
    @decorator
    class Written:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "written"

    assert Written(1) == Written(2) and repr(Written(1)) == "written"
    assert hash(Written(1)) == hash(Written(1)) != hash(Written(2))


@pytest.mark.parametrize("one", [Point(1), Point(1, 2.0), Derived(3)])
def test_copies_and_pickles_are_equal(one):
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one and hash(other) == hash(one)
        with pytest.raises(FrozenInstanceError):
            other.x = 4


def test_one_field_is_compared_as_in_a_tuple():
    """The same object is equal to itself, even NaN."""
    nan = float("nan")
    for decorator in DECORATORS:

        @decorator
        class One:
            x: float

        assert One(nan) == One(nan) and One(nan) != One(float("nan"))


def test_identity_and_keywords():
    @frozen(eq=False)
    class Node:
        x: int

    @frozen(kw_only=True)
    class Options:
        x: int = 1

    assert Node(1) != Node(1) and len({Node(1), Node(1)}) == 2
    assert Options(x=2).x == 2
    with pytest.raises(TypeError):
        Options(2)


def test_a_frozen_dataclass_and_its_descendants():
    @dataclass(frozen=True)
    class Last(Derived):
        z: int = 3

    assert repr(Derived(5)) == "Derived(x=5, y=2)" and Derived(5) != Base(5)
    assert Last(z=4) == Last(1, 2, 4)
    with pytest.raises(FrozenInstanceError):
        Derived().y = 1


def test_a_value_that_contains_itself_is_printed():
    one = Point(1, [])
    one.y.append(one)
    assert repr(one) == "Point(x=1, y=[...])"
