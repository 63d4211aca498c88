"""What a model says about itself, changed, and nothing else with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import ModelProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir.load import ModelLike, check_room, load_own, to_kind_of
from onnxgrad.ir.program import HEADER, Program
from onnxgrad.ir.save import to_proto
from onnxgrad.options import known_keywords, several

_MOST = 1 << 63


@known_keywords
def set_metadata(
    model: ModelLike,
    values: Mapping[str, str] | None = None,
    *,
    unset: Sequence[str] = (),
    producer_name: str | None = None,
    producer_version: str | None = None,
    domain: str | None = None,
    model_version: int | None = None,
    doc_string: str | None = None,
) -> Any:
    """The model with these entries in its metadata, and without those `unset`, in the kind that was
    given; the other words of its header where they are given ("" and 0: none). All else stays field
    for field, which is looked at.

    What there is, `inspect` has: `inspect(model).metadata`. Raises InputError for an entry to
    `unset` that there is not, and for what is no text.

    >>> model = onnxgrad.set_metadata("models/lstmcell.onnx", {"author": "me"}, model_version=2)
    >>> onnxgrad.inspect(model).metadata["author"], model.model_version
    ('me', 2)
    """
    program = load_own(model)
    check_room(program, model)
    header = {
        "producer_name": producer_name, "producer_version": producer_version, "domain": domain,
        "model_version": model_version, "doc_string": doc_string,
    }  # fmt: skip
    given = {name: value for name, value in header.items() if value is not None}
    change(program, values or {}, several(unset, "set_metadata: unset"), given)
    return to_kind_of(program, model)


def change(
    program: Program,
    values: Mapping[str, str],
    unset: Sequence[str],
    header: Mapping[str, str | int],
) -> None:
    """`set_metadata` on a Program itself."""
    before = to_proto(program)
    for key in unset:
        if key in values:
            raise InputError(f"metadata {key!r} is to be set and unset")
        if program.metadata.pop(key, None) is None:
            known = ", ".join(program.metadata) or "none"
            raise InputError(f"metadata {key!r} is not there to be unset (there is: {known})")
    for key, text in values.items():
        if not isinstance(key, str) or not isinstance(text, str) or not key:
            raise InputError(f"metadata {key!r}: a name and a text are wanted, not {text!r}")
        program.metadata[key] = text
    for name, value in header.items():
        wanted = int if name == "model_version" else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InputError(f"{name}: {value!r} is no {'number' if wanted is int else 'text'}")
        if isinstance(value, int) and not -_MOST <= value < _MOST:
            raise InputError(f"{name}: {value} has more than 64 bits")
        program.header[name] = value
    _check_rest(before, to_proto(program))


def _check_rest(before: ModelProto, after: ModelProto) -> None:
    """Raises InternalError where anything else differs."""
    for model in (before, after):
        for name in ("metadata_props", *HEADER):
            model.ClearField(name)
    if before != after:
        raise InternalError("more of the model changed than its metadata")
