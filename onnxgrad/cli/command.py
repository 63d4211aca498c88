"""The first steps of every command after its arguments are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_reports, protected
from onnxgrad.verify.running.libraries import custom_ops


def carry_out(args: argparse.Namespace, run: Callable[[argparse.Namespace, Output], int]) -> int:
    """Runs the command of `args`, which is the function `run`, with the user's plugins. Returns its
    exit code.
    """
    with protected(args):
        if not getattr(args, "makes_folders", False):
            check_reports(args)
        return _carry_out(args, run)


def _carry_out(args: argparse.Namespace, run: Callable[[argparse.Namespace, Output], int]) -> int:
    for library in getattr(args, "custom_ops", ()):
        custom_ops(library)
    args.own_passes = []
    if args.plugin:
        import_module("onnxgrad.surface")  # registers every rule and pass before a plugin runs
        args.own_passes = import_module("onnxgrad.passes.user_laws").run_plugins(args.plugin)
    out = Output(
        color=args.color,
        quiet=args.quiet,
        verbose=args.verbose,
        json=args.json,
        binary=getattr(args, "output", None) == "-",
    )
    try:
        return run(args, out)
    finally:
        out.finish()
