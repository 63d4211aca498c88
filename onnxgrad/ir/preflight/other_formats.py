"""Recognises files of other formats by their first bytes, for the error about a file that is not an
ONNX model.
"""

from __future__ import annotations

import re

FIRST_BYTES = 512  # of a file, enough for every format below

_EXPORT = "export it to ONNX first"
_UNPACK = "unpack it first"
# the offset of a mark, the mark, and the sentence about the file; the first match decides
_MARKS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
    (4, b"TFL3", f"a TensorFlow Lite model: {_EXPORT}, such as with tf2onnx"),
    (4, b"ORTM", "a model in onnxruntime's ORT format: use the ONNX file it was converted from"),
    (0, b"GGUF", "a GGUF file of llama.cpp, which holds weights but no graph"),
    (0, b"\x89HDF\r\n\x1a\n", f"an HDF5 file, such as of Keras: {_EXPORT}, such as with tf2onnx"),
    (0, b"\x93NUMPY", "a NumPy array, not an ONNX model"),
    (0, b"\x1f\x8b", "compressed by gzip: decompress it first, as with `gunzip`"),
    (0, b"BZh", "compressed by bzip2: decompress it first, as with `bunzip2`"),
    (0, b"\xfd7zXZ\0", "compressed by xz: decompress it first, as with `unxz`"),
    (0, b"(\xb5/\xfd", "compressed by zstd: decompress it first, as with `unzstd`"),
    (257, b"ustar", f"a tar archive: {_UNPACK}"),
)
_PYTORCH = f"a PyTorch file: {_EXPORT}, as with torch.onnx.export"
_NUMPY = "an .npz file of NumPy arrays, not an ONNX model"
# the number with which torch.save began its files before it wrote zip archives
_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_PAGE = re.compile(rb"<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_XML = re.compile(rb"<(?:\?xml|!--)")
_JSON = re.compile(rb"""[{\[]\s*(?:["{\[\]}]|-?\d|true|false|null)""")
# the length of a header of JSON, then the header
_SAFETENSORS = re.compile(rb".{4}\0{4}\{\s*\"", re.DOTALL)


def format_of(data: bytes) -> str:
    """Returns a phrase about a file of another format that begins with `data`, and what to do; an
    empty text for an unknown format.
    """
    for offset, mark, what in _MARKS:
        if data[offset : offset + len(mark)] == mark:
            return what
    if data.startswith(b"PK\x03\x04"):
        return _zip(data)
    if _SAFETENSORS.match(data):
        return "a safetensors file, which holds weights but no graph"
    if _PICKLE.match(data):
        torch = b"torch" in data or data[2:14] == _MAGIC
        return _PYTORCH if torch else "a Python pickle, such as an old PyTorch file, not a model"
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _PAGE.match(text):
        return "a web page: the download failed, or needs the link of the raw file"
    if _XML.match(text):
        return "an XML file, not an ONNX model"
    return "a JSON file, not an ONNX model" if _JSON.match(text) else ""


def _zip(data: bytes) -> str:
    """Returns the phrase about a zip archive, by its first entry."""
    end = 30 + int.from_bytes(data[26:28], "little")
    name, extra = data[30:end], data[end : end + 2]
    if extra == b"FB" or name.endswith(b"data.pkl"):  # PyTorch aligns entries by a field FB
        return _PYTORCH
    return _NUMPY if name.endswith(b".npy") else f"a zip archive: {_UNPACK}"
