"""Texts that operators tell apart: their vocabularies, stopwords and separators, and texts that a
regular expression matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import onnx

from onnxgrad.ir.attributes import values_of

# operator: the attributes with texts that it knows
_WORDS: dict[str, tuple[str, ...]] = {
    "CategoryMapper": ("cats_strings",),
    "LabelEncoder": ("keys_strings",),
    "OneHotEncoder": ("cats_strings",),
    "StringNormalizer": ("stopwords",),
    "TfIdfVectorizer": ("pool_strings",),
}
SPLITS = ("Tokenizer", "StringSplit")  # operators that split sentences into words
_TURNS = 4  # texts that are made of one pattern
_MOST = 64  # repetitions


def known_texts(node: onnx.NodeProto) -> list[str]:
    """Returns texts that a node tells apart from others."""
    known = values_of(node)
    found = [w for name in _WORDS.get(node.op_type, ()) for w in known.get(name, [])]
    words = [w.decode("utf-8", "replace") if isinstance(w, bytes) else str(w) for w in found]
    if node.op_type == "RegexFullMatch":
        words += matches(_text(known.get("pattern", b"")))
    if node.op_type == "StringSplit" and (by := _text(known.get("delimiter", b""))):
        words += [f"alpha{by}beta", f"{by}gamma{by}{by}", "delta"]
    if node.op_type == "StringNormalizer" and words:
        words += ["alpha", "42"]  # others than stopwords
    return words


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_OF_SETS = re.compile(r"\[\^?\[|--|&&|\|\||~~")  # operations that Python reserves


def matches(pattern: str) -> list[str]:
    """Returns texts that match a whole regular expression, and one that does not; none if the
    pattern is not understood.
    """
    if _OF_SETS.search(pattern):
        return []
    try:  # the parser of `re`: its name depends on the version of Python
        parser: Any = getattr(re, "_parser", None) or import_module("sre_parse")
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return []
    made = [_made(parsed, turn) for turn in range(_TURNS)]
    found = [text for text in dict.fromkeys(made) if re.fullmatch(pattern, text)]
    return [*found, f"{found[0]}~"] if found else []


def _made(parsed: Sequence[Any], turn: int) -> str:
    """Returns a text for a parsed pattern; another one each `turn`."""
    found = ""
    for code, value in parsed:
        kind = str(code)
        if kind == "LITERAL":
            found += chr(value)
        elif kind in ("IN", "NOT_LITERAL", "ANY"):
            found += _character(kind, value, turn)
        elif kind == "BRANCH":
            found += _made(value[1][turn % len(value[1])], turn)
        elif kind.endswith("REPEAT"):
            least, most, inner = value
            times = min(least + turn % 3, int(most), max(least, _MOST))
            found += "".join(_made(inner, turn + i) for i in range(times))
        elif kind in ("SUBPATTERN", "ATOMIC_GROUP"):
            found += _made(value[-1] if kind == "SUBPATTERN" else value, turn)
    return found


_CHARACTERS = "a1 Z_-é.\t0"
_CATEGORIES: dict[str, Callable[[str], Any]] = {
    "DIGIT": str.isdigit,
    "SPACE": str.isspace,
    "WORD": re.compile(r"\w").match,
}


def _character(kind: str, value: Any, turn: int) -> str:
    """Returns a character of a class."""
    if kind != "IN":
        return next(c for c in _CHARACTERS if kind == "ANY" or ord(c) != value)
    negated = bool(value) and str(value[0][0]) == "NEGATE"
    known: list[str] = []
    for code, of in value[negated:]:
        if str(code) == "LITERAL":
            known.append(chr(of))
        elif str(code) == "RANGE":
            known += [chr(of[0]), chr(of[1]), chr((of[0] + of[1]) // 2)]
        else:
            name = str(of).rpartition("_")[2]
            known += [c for c in _CHARACTERS if bool(_CATEGORIES[name](c)) != ("NOT" in str(of))]
    if negated:
        known = [c for c in _CHARACTERS if c not in known] or ["~"]
    return known[turn % len(known)] if known else ""
