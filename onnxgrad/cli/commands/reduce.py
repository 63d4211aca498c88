"""`onnxgrad reduce`: finds the smallest model that still fails a check."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import ModelProto

from onnxgrad.cli.app import main
from onnxgrad.cli.models import read
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import write_model
from onnxgrad.errors import InputError
from onnxgrad.interpreter import python_command
from onnxgrad.ir.load import load
from onnxgrad.ir.storage.external_data import load_weights
from onnxgrad.ir.storage.places import check_output
from onnxgrad.ir.storage.protection import STDIN
from onnxgrad.jobs.reduce import smallest, words_of
from onnxgrad.report.parts import bytes_text, changed, heading, number, table
from onnxgrad.verify.reducing.reduce import Reduction
from onnxgrad.wording import counted

_FAILURES = (1, 3)  # exit codes that the given model or options did not cause


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0 after writing the smallest model."""
    target = Path(args.output)
    if args.output == STDIN:
        raise InputError("reduce writes to a file: -o OUT")
    check_output(target)
    model, folder = read(args.model)
    load_weights(model, folder)
    with tempfile.TemporaryDirectory(prefix="onnxgrad-") as scratch:
        words = words_of(args.check if args.fails is None else args.fails)
        if args.fails is not None:
            words = _own(words, Path(scratch))
        with out.progress("reduce", 1) as advance:

            def on_step(step: str, model: ModelProto, checked: int) -> None:
                nodes, size = counted(len(model.graph.node), "node"), bytes_text(model.ByteSize())
                advance(f"{nodes}, {size}, {checked} checked, {step}", None)

            found = smallest(
                model,
                words,
                args.options,
                name=args.model,
                statuses=None if args.fails is None else _FAILURES,
                on_step=on_step,
                server=None if args.fails is None else python_command(_SERVE, package=True),
            )
    write_model(load(found.model), target, out)
    _show(args, out, model, found)
    return 0


_SERVE = "from onnxgrad.cli.commands.reduce import serve; serve(sys.argv[1])"


def serve(printed: str) -> None:
    """Runs the commands of stdin, one line of JSON each: their output goes to the file `printed`,
    their exit codes to stdout.
    """
    lines, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(printed, os.O_RDWR | os.O_CREAT)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for line in lines:
        os.ftruncate(output, 0)
        os.lseek(output, 0, os.SEEK_SET)
        code = main(json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        print(code, file=answers, flush=True)


def _own(words: list[str], scratch: Path) -> list[str]:
    """Returns a command of this program, completed so that it runs on a candidate alone."""
    writes = words[0] in ("optimize", "grad") and not {"-o", "--output", "--dry-run"} & set(words)
    return [*words, "-o", str(scratch / "result.onnx")] if writes else words


def _show(args: argparse.Namespace, out: Output, before: onnx.ModelProto, found: Reduction) -> None:
    after = found.model
    rows = (
        ("nodes", *changed(len(before.graph.node), len(after.graph.node))),
        ("inputs", *changed(len(before.graph.input), len(after.graph.input))),
        ("outputs", *changed(len(before.graph.output), len(after.graph.output))),
        ("file size", bytes_text(before.ByteSize()), bytes_text(after.ByteSize()), ""),
    )
    out.show(
        heading(args.model),
        table("", ">before", ">after", ">change", rows=rows),
        f"{counted(found.checked, 'candidate')} checked, {number(found.invalid)} invalid",
    )
    if not found.finished:
        out.show("note: stopped by --timeout; more time may make it smaller")
    nodes = {"before": len(before.graph.node), "after": len(after.graph.node)}
    out.json(
        {
            "model": args.model,
            "output": args.output,
            "nodes": nodes,
            "finished": found.finished,
            "bytes": {"before": before.ByteSize(), "after": after.ByteSize()},
            "checked": found.checked,
            "invalid": found.invalid,
            "steps": found.steps,
        }
    )
