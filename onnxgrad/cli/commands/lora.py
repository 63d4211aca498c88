"""`onnxgrad lora`: adds adapters, writes trained ones for other programs, or merges them."""

from __future__ import annotations

import argparse
from pathlib import Path

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.options import show_proved, within_limits
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, writer
from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.jobs.surgery.lora import Form, described, lora
from onnxgrad.report.gradient import nodes
from onnxgrad.report.parts import cell, heading, number
from onnxgrad.train.adapters import adapters_of, save_adapters, save_onnxruntime, save_peft
from onnxgrad.train.adapters.peft import FILES as PEFT_FILES
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted

_STAGES: dict[Form, str] = {
    "added": "with adapters against without",
    "merged": "merged against side by side",
    "inputs": "no adapter fed against none there",
}


def run(args: argparse.Namespace, out: Output) -> int:
    """Makes and proves the model that -o names, then writes the adapters of MODEL."""
    form = _form(args)
    model = source(args.model)
    if form is not None:
        _write_model(args, out, model, form)
    if _saves(args):
        with within_limits(args), naming(args.model):
            _save(args, out, model)
    return 0


def _saves(args: argparse.Namespace) -> list[str]:
    """The flags that write the adapters of MODEL."""
    given = {"--save": args.save, "--peft": args.peft, "--onnxruntime": args.onnxruntime}
    return [flag for flag, value in given.items() if value is not None]


def _form(args: argparse.Namespace) -> Form | None:
    """Returns the model that -o names; None if only adapters are written. Raises InputError for
    flags that do not go together.
    """
    saves = _saves(args)
    forms: dict[str, Form] = {
        **({"--targets": "added"} if args.options.targets else {}),
        **({"--merge": "merged"} if args.options.merge else {}),
        **({"--onnxruntime": "inputs"} if args.onnxruntime is not None else {}),
    }
    if "--targets" in forms and len(forms) + len(saves) > 1:
        other = next(flag for flag in (*forms, *saves) if flag != "--targets")
        raise InputError(f"--targets adds adapters, {other} is for trained ones: two commands")
    if not forms and not saves:
        raise InputError(
            "lora: nothing is requested: --targets adds adapters; --save, --peft, --onnxruntime "
            "and --merge are for a model that has them"
        )
    if args.output is None:
        if lacking := [flag for flag in forms if flag != "--onnxruntime"]:
            raise InputError(f"{lacking[0]} makes a model: name its file with -o OUT")
        return None
    if not forms:
        raise InputError(f"-o: {saves[0]} makes no model; --merge and --onnxruntime do")
    if len(forms) > 1:
        raise InputError("-o is either the model of --merge or that of --onnxruntime")
    return next(iter(forms.values()))


def _write_model(args: argparse.Namespace, out: Output, model: ModelLike, form: Form) -> None:
    target = target_of(args.output)
    if args.verify:
        require_runtime(args.options.provider)
    before: list[int] = []
    hooks = Hooks(
        on_read=lambda program: before.append(nodes(program)),
        write=writer(target, out),
        limits=bounding_us,
    )
    with naming(args.model), out.progress(args.command, 1) as advance:
        advance(_STAGES[form], None)
        found = lora(model, args.options, hooks, form)
    change = f"{number(before[0])} → {counted(nodes(found.program), 'node')}"
    if form == "added":
        change = f"{described(adapters_of(found.program))}; {change}"
    show_proved(found, args, out, {"model": args.model}, change)


def _save(args: argparse.Namespace, out: Output, model: ModelLike) -> None:
    found = adapters_of(model)
    if args.save is not None:
        save_adapters(found, args.save)
        out.wrote(args.save)
    if args.peft is not None:
        save_peft(model, args.peft, rename=args.options.rename)
        out.wrote(*(Path(args.peft) / name for name in PEFT_FILES))
    if args.onnxruntime is not None:
        save_onnxruntime(model, args.onnxruntime)
        out.wrote(args.onnxruntime)
    if args.output is None:
        out.show(heading(shown(args.model)), cell(described(found)))
        out.json({"model": args.model, "adapters": found.words()})
