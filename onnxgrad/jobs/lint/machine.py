"""The lint of metadata that names the exporting machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from onnxgrad.ir.protobufs import every_graph, model_nodes
from onnxgrad.jobs.lint.weights import Model

# parts of texts with a path of a machine or a frame of a traceback, which are quick to find
_FOLDERS = ("home", "Users", "root", "mnt", "tmp")
_MARKS = ('File "', '.py"', ".py:", ".py,", *(f"/{name}/" for name in _FOLDERS), ":\\")
# a whole path
_PATH = re.compile(
    r"(?:[A-Za-z]:\\(?:[^\\/:*?\"<>|\s]+\\)*[^\\/:*?\"<>|\s]+)"
    r"|(?:(?:/[\w.@+-]+)+\.py\b)|(?:/(?:home|Users|root|mnt|tmp)(?:/[\w.@+-]+)+)|(?:[\w./]+\.py\b)"
)


def host_paths(model: Model) -> Iterator[str]:
    """Yields the paths of the exporting machine."""
    proto = model.program.proto
    messages = (proto, *proto.functions, *every_graph(proto.graph), *model_nodes(proto))
    for text in (text for message in messages for text in _texts(message)):
        if _is_of_a_machine(text) and (path := _PATH.search(str(text))):
            yield (
                "paths or source code of the exporting machine in doc strings or metadata, such as "
                f"{path[0][:120]}"
            )
            return


def _texts(message: Any) -> Iterator[str | bytes]:
    yield message.doc_string
    for entry in message.metadata_props:
        yield entry.value


def _is_of_a_machine(text: str | bytes) -> bool:
    # protobuf returns bytes for text that is not UTF-8
    return isinstance(text, str) and any(mark in text for mark in _MARKS)
