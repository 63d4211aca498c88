"""The lint of texts that reveal the exporting machine: paths, folders of its users, source code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from onnxgrad.ir.protobufs import every_graph, model_nodes
from onnxgrad.jobs.lint.weights import Model
from onnxgrad.wording import counted

_SHOWN = 120  # characters of a path or a line of code
_TEXT = "doc string or metadata entry"

# parts of texts with a path or a frame of a traceback, which are quick to find
_FOLDERS = ("home", "Users", "root", "mnt", "tmp")
_MARKS = ('File "', ".py", *(f"/{name}/" for name in _FOLDERS), ":\\", "\\\\")
# an absolute path: below a folder of users or of scratch files, of a drive or a server, or a module
_BEFORE = r"(?<![\w.~)\]-])"
_PATH = re.compile(
    r"(?P<url>\b(?!file:)[A-Za-z][\w+.-]*://\S+)"
    rf"|{_BEFORE}/(?:{'|'.join(_FOLDERS)})(?:/[\w.@+-]+)+"
    rf"|{_BEFORE}(?:/[\w.@+-]+)+\.py\b"
    rf"|{_BEFORE}[A-Za-z]:\\(?:[^\\/:*?\"<>|\s]+\\)*[^\\/:*?\"<>|\s]{{2,}}"
    rf"|{_BEFORE}\\\\\w[\w.$-]{{2,}}\\[^\\\s\"]+[^\s\"]*"
)
# a frame of a traceback with its line of code
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line \d+[^\n]*(?:\n[ \t]+(?P<code>\S[^\n]*))?')
_ABSOLUTE = re.compile(r"/|\\\\|[A-Za-z]:[\\/]")
# installed packages, the standard library and generated code are not of one machine
_INSTALLED = re.compile(
    r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib(?:64)?[\\/]python3[.\d]*[\\/]|^<(?:frozen|eval)"
    r"|[\\/]python3\d*[\\/]lib[\\/]",
    re.IGNORECASE,
)
# unless they lie in a folder that names a person
_HOME = re.compile(r"(?:[A-Za-z]:[\\/])?[\\/]?(?:home|Users|root)[\\/]", re.IGNORECASE)


def host_paths(model: Model) -> Iterator[str]:
    """Yields how many texts reveal the exporting machine, with a path or line of code of one."""
    proto = model.program.proto
    graphs = [*every_graph(proto.graph)]
    values = [v for g in graphs for v in (*g.input, *g.output, *g.value_info, *g.initializer)]
    messages = (proto, *proto.functions, *graphs, *model_nodes(proto), *values)
    texts = Counter(text for message in messages for text in _texts(message))  # many are equal
    found = {text: part for text in texts if (part := _revealed(text))}
    if found:
        count = sum(texts[text] for text in found)
        reveal = f"{'reveals' if count == 1 else 'reveal'} the exporting machine"
        words = counted(count, _TEXT, "doc strings and metadata entries")
        yield f"{words} {reveal}, such as {next(iter(found.values()))}"


def _texts(message: Any) -> Iterator[str | bytes]:
    yield message.doc_string
    for entry in message.metadata_props:
        yield entry.value


def _revealed(text: str | bytes) -> str:
    """Returns the first path or line of code that belongs to the machine; empty if there is none:
    relative paths, and frames of installed packages outside the folders of users.
    """
    # protobuf returns bytes for text that is not UTF-8
    if not isinstance(text, str) or not any(mark in text for mark in _MARKS):
        return ""
    for match in _PATH.finditer(text):
        if match["url"] is None and _is_of_a_machine(match[0]):
            return match[0][:_SHOWN]
    for frame in _FRAME.finditer(text):
        file, code = frame["file"], frame["code"]
        if (code or _ABSOLUTE.match(file)) and _is_of_a_machine(file):
            return (f"{file}: {code}" if code else file)[:_SHOWN]
    return ""


def _is_of_a_machine(path: str) -> bool:
    return bool(_HOME.match(path)) or not _INSTALLED.search(path)
