"""The arguments of each command: the options that its job declares, the flags that only the command
has, and two examples. Imports no more than `--help` needs.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from onnxgrad.cli.help_text import examples_text
from onnxgrad.jobs import declarations as jobs
from onnxgrad.jobs import gradient_declarations as gradients
from onnxgrad.jobs import surgery_declarations as surgery
from onnxgrad.jobs.declared import Declaration, add_flags, group_of, reader
from onnxgrad.jobs.gradient_declarations import PRODUCTS
from onnxgrad.jobs.groups import Seconds, Several
from onnxgrad.jobs.training import declarations as training
from onnxgrad.vocabulary import TUNE_FILE, TUNE_SECONDS


@dataclass(frozen=True)
class Row:
    """A flag or a positional argument: what `add_argument` accepts, the `title` of its group, and
    the exclusive group `either` in which one alone may be given.
    """

    names: tuple[str, ...]
    keywords: dict[str, Any]
    title: str = ""
    either: str = ""


@dataclass(frozen=True)
class Command:
    """`onnxgrad NAME`: its summary, the declaration of its job, its own rows and two examples.
    `required`: exclusive groups of which one must be given. `module`: the module of
    `cli.commands` that runs it, if that is not called as the command.
    """

    summary: str
    examples: tuple[tuple[str, str], tuple[str, str]]
    rows: tuple[Row, ...] = ()
    options: type[Declaration] | None = None
    required: tuple[str, ...] = ()
    text: str = ""
    defaults: tuple[tuple[str, Any], ...] = ()
    module: str = ""


def row(*names: str, title: str = "", either: str = "", **keywords: Any) -> Row:
    """Return a row; `help` and the others are those of `add_argument`."""
    return Row(names, keywords, title, either)


def add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the arguments of a command to its parser."""
    either: dict[str, argparse._MutuallyExclusiveGroup] = {}
    if command.options is not None:
        group_of(parser, vars(command.options).get("title", ""))  # the job's own group comes first
    for r in command.rows:
        place: Any = group_of(parser, r.title)
        if r.either:
            place = either.get(r.either) or place.add_mutually_exclusive_group(
                required=r.either in command.required
            )
            either[r.either] = place
        place.add_argument(*r.names, **r.keywords)
    if command.options is not None:
        add_flags(parser, command.options)
    parser.set_defaults(**dict(command.defaults))
    parser.epilog = f"{command.text}{examples_text(command.examples)}"


MODEL = row("model", metavar="MODEL", help="an ONNX file, or - for stdin")
OUTPUT = row("-o", "--output", metavar="OUT", help="the file to write; - is stdout")
NEEDED = row(*OUTPUT.names, **OUTPUT.keywords, required=True)
_PAGE = "write a page to look at: one file, which needs no network"
HTML = row("--html", metavar="FILE", help=_PAGE)


def custom_ops(title: str) -> Row:
    """The row of every command that has onnxruntime run something."""
    return row(
        "--custom-ops",
        title=title,
        action="append",
        default=[],
        metavar="LIB.so",
        help="a library of custom operators for onnxruntime; it runs with your rights",
    )


_REDUCING = """\
The check is a command (no shell: write sh -c '...' for one). It gets the path of a candidate as its
last argument, or wherever {} stands. An exit status other than 0 means that the candidate still
fails, so that it may take the model's place; with --interesting-exit only that status does (a
command that a signal ended counts as 128 plus its number), with --says only an output that holds
the words. A check that takes longer than --check-timeout says nothing.

Exit codes: 0 reduced (or as small as --timeout allowed), 2 when the check does not fail on MODEL
itself.

"""
_CI = "for machines and pages"

COMMANDS: dict[str, Command] = {
    "optimize": Command(
        "rewrite a model into a smaller equal one, and prove that it is equal",
        (("optimize model.onnx -o out.onnx", "rewrite, prove, write"),
         ("optimize '*.onnx' --out-dir small --merge always",
          "several models, all parallel products merged")),
        (
            row("model", nargs="+", metavar="MODEL", help="an ONNX file, a glob, or - for stdin"),
            row("-o", "--output", either="where", metavar="OUT",
                help="the file to write; - is stdout"),
            row("--out-dir", either="where", metavar="DIR",
                help="the folder to write to, under the inputs' names"),
            row("--dry-run", action="store_true", help="rewrite and prove, but write no model"),
            HTML,
            row("--verify", choices=("model", "each"), default="model", help="model (default): "
                "prove the whole model; each: also cut out every rewrite and run both of its forms "
                "on its own operands, so that a wrong law is named at once (with --no-verify only "
                "this)"),
            row("--no-verify", action="store_true",
                help="skip the proof of the whole model (needs no onnxruntime)"),
            row("--lift", title="rewriting", metavar="FILE", help="split the result into a "
                "preparation, which goes to this file and runs once at load, and the rest, whose "
                "inputs are its outputs: what depends on weights alone; both are proved together"),
            row("--weights", title="rewriting", action="append", metavar="NAME",
                help="with --lift: an input that is set at load, or an initializer, which becomes "
                "such an input; or a glob of them; may repeat (default: constants alone)"),
            row("--tune", title="tuning", action="store_true", help="measure in onnxruntime, on "
                "the provider, threads and inputs of the proof, which rewrites pay, and keep those "
                "that win beyond the noise"),
            row("--tune-time", title="tuning", type=reader(Seconds, "--tune-time"),
                metavar="SECONDS",
                help=f"for measuring, beside --timeout (default: {TUNE_SECONDS:g})"),
            row("--tune-file", title="tuning", metavar="FILE",
                help=f"where the decisions go (default: {TUNE_FILE} beside OUT)"),
            row("--tune-from", title="tuning", metavar="FILE",
                help="the decisions of an earlier --tune, again: the same bytes, nothing measured"),
            custom_ops("proof"),
        ),
        jobs.OptimizeOptions,
    ),
    "ci": Command(
        "the models of a recipe optimised, proved, held to what is required and to the lock",
        (("ci", "every model of onnxgrad.toml, held to what it requires"),
         ("ci --update --jobs 2", "and write the lock that it is compared with")),
        (
            row("config", nargs="?", metavar="CONFIG", help="the recipe (default: onnxgrad.toml, "
                "or [tool.onnxgrad] of pyproject.toml, in this folder)"),
            row("--update", action="store_true",
                help="write the lock anew, where every model passes"),
            row("--jobs", type=reader(Several, "--jobs"), default=1, metavar="N",
                help="models at once (default: 1)"),
            row("--dask", metavar="ADDRESS", help="hand the models to the workers of the Dask "
                "cluster whose scheduler is there (tcp://HOST:8786); they read and write the same "
                "files under the same names"),
            row("--keep-going", action="store_true",
                help="look at all models, also after one that fails"),
            custom_ops(""),
            row("--schema", action="store_true",
                help="print the JSON schema of what --json writes"),
            row("--junit", title=_CI, metavar="FILE", help="write the result as JUnit XML"),
            row("--markdown", title=_CI, metavar="FILE",
                help="write the result as Markdown, such as for a job summary"),
            row("--html", title=_CI, metavar="FILE",
                help=_PAGE),
            row("--annotations", title=_CI, action=argparse.BooleanOptionalAction,
                help="print the models that "
                "fail or changed as lines on stderr that GitHub shows beside the files (default: "
                "where GITHUB_ACTIONS is true)"),
        ),
        # the recipe's `out` may be where a report goes too: places are checked when it is there
        defaults=(("makes_folders", True),),
    ),
    "grad": Command(
        "the gradient of a model as a plain ONNX graph, checked against differences",
        (("grad model.onnx -o grad.onnx --wrt params --target loss",
          "the gradient of the output loss by every weight"),
         ("grad model.onnx -o grad.onnx --target logits --adjoint input",
          "of an output of any shape, whose adjoint becomes an input")),
        (
            MODEL, NEEDED, HTML,
            row("--mark", action="store_true", help="write the model itself with the marks of "
                "--checkpoint in it; a grad without --checkpoint reads them"),
            row("--function", metavar="NAME", help="the gradient of this local function, by all "
                "its operands, as one more function of the model"),
            row("--jvp", title=PRODUCTS, either="of", dest="of", action="store_const", const="jvp",
                help="forward mode: J v, with v as new inputs {}_tangent and outputs {}_tangent"),
            row("--hvp", title=PRODUCTS, either="of", dest="of", action="store_const", const="hvp",
                help="the gradient, and H v of a scalar target's Hessian, as {}_hvp"),
            row("--jacobian", title=PRODUCTS, either="of", dest="of", action="store_const",
                const="jacobian",
                help="the Jacobian of one target by each value, as TARGET_by_VALUE"),
            row("--casadi", title=PRODUCTS, either="of", dest="of", choices=("adj", "fwd"),
                help="what CasADi looks for beside f.onnx, in its names and layout: reverse mode "
                "for adj_f.onnx, forward for fwd_f.onnx; of adj_f.onnx forward for "
                "fwd_adj_f.onnx"),
            custom_ops("proof"),
        ),
        gradients.GradOptions,
    ),
    "check-grad": Command(
        "compare a model's gradient with central differences, value by value",
        (("check-grad model.onnx --wrt params --target loss",
          "every weight's gradient against differences"),
         ("check-grad model.onnx --target loss --input batch.npz --seed 1",
          "on values of your own, in other directions")),
        (MODEL, custom_ops("check")),
        gradients.CheckGradientOptions,
    ),
    "train-step": Command(
        "a training step as a folder of plain ONNX files: loss, gradient and update",
        (("train-step model.onnx -o step --loss loss",
          "train.onnx, eval.onnx, the state and the manifest"),
         ("train-step model.onnx -o step --loss 'mse{output=logits}' --optimizer 'sgd{lr=0.1}'",
          "with a loss of its own, whose labels become an input")),
        (
            row("model", metavar="MODEL", nargs="?", help="an ONNX file, or - for stdin"),
            row("-o", "--output", metavar="FOLDER",
                help="where train.onnx, eval.onnx, state.safetensors and manifest.json go"),
            row("--training-info", either="form", action="store_true", help="one file instead: the "
                "model with the step as its TrainingInfoProto; -o names it"),
            row("--from-training-info", either="form", action="store_true", help="write "
                "the step that --training-info put into MODEL; options of steps are ignored"),
            row("--seal", either="form", metavar="FOLDER", help="accept the graphs of a step that "
                "were changed since: write their digests into its manifest, and nothing else"),
            custom_ops("proof"),
        ),
        training.TrainStepOptions,
    ),
    "fit": Command(
        "train a model on data, without the framework that made it",
        (("fit classifier.onnx --loss cross_entropy --data labelled.npz -o out.onnx",
          "train on arrays called as the model's input and labels, write it with its new weights"),
         ("fit step --data train.npz --folder run --log log.jsonl",
          "go on with a training step's folder, saving as it goes")),
        (
            row("model", metavar="MODEL", help="an ONNX file, or the folder of a training step"),
            row("-o", "--output", metavar="OUT", help="where the trained model goes"),
            row("--original", metavar="FILE",
                help="with a folder and -o: the model that the step is of"),
            custom_ops("run"),
        ),
        training.FitOptions,
    ),
    "verify": Command(
        "run two models and say whether they compute the same",
        (("verify model.onnx out.onnx", "equal, or the worst difference"),
         ("verify model.onnx half.onnx --rtol 1e-2 --atol 1e-3",
          "a model that is not meant to be equal, within bounds")),
        (
            row("a", metavar="A", help="the original: an ONNX file, or - for stdin"),
            row("b", metavar="B", nargs="?", help="the model that should equal it"),
            custom_ops("proof"),
        ),
        jobs.VerifyOptions,
    ),
    "inspect": Command(
        "what is in a model: interface, operators, parameters, or the whole block as text",
        (("inspect model.onnx", "interface, operators, parameters"),
         ("inspect model.onnx --weights",
          "which constants are weights, and why the others are not")),
        (
            MODEL,
            row("--text", either="what", action="store_true", help="print the whole binding block"),
            row("--weights", either="what", action="store_true",
                help="which constants are weights, what `params` leaves out, and why"),
            HTML,
        ),
        jobs.InspectOptions,
    ),
    "convert-opset": Command(
        "bring a model to another opset, operator by operator, and prove it equal",
        (("convert-opset model.onnx --to 20 -o out.onnx", "the same at opset 20"),
         ("convert-opset model.onnx --to 21 -o - | onnxgrad inspect -",
          "look at it without writing a file")),
        (MODEL, NEEDED, custom_ops("proof")),
        jobs.ConvertOpsetOptions,
    ),
    "float16": Command(
        "a model's float32 weights and computations in float16, proved within a bound",
        (("float16 model.onnx -o out.onnx",
          "half the size, within a fiftieth of the largest value"),
         ("float16 model.onnx -o out.onnx --keep 'Reduce*' --metric worst=0.01",
          "an operator stays, and a bound of one's own")),
        (MODEL, NEEDED, custom_ops("proof")),
        jobs.Float16Options,
    ),
    "extract": Command(
        "the part of a model between some of its values, proved against the whole",
        (("extract model.onnx --outputs hidden -o encoder.onnx", "what computes one value"),
         ("extract model.onnx --inputs hidden --outputs logits -o head.onnx",
          "what comes behind it")),
        (MODEL, NEEDED),
        surgery.ExtractOptions,
        module="surgery",
    ),
    "open-batch": Command(
        "a dynamic batch in the place of a fixed batch (rebatch), proved row by row",
        (("open-batch fixed.onnx -o out.onnx", "a batch of any size"),
         ("open-batch fixed.onnx --inputs x --symbol N -o out.onnx",
          "rows in these inputs; the others are shared by all rows")),
        (MODEL, NEEDED, custom_ops("proof")),
        surgery.OpenBatchOptions,
    ),
    "edit": Command(
        "bind inputs to constants, rename values, drop outputs, and prove the model the same",
        (("edit model.onnx --rename logits=scores --drop-output loss -o out.onnx",
          "another name, and an output less"),
         ("edit model.onnx --bind t=batch.npz -o out.onnx",
          "an input less: it has the value of the file, or a number")),
        (MODEL, NEEDED, custom_ops("proof")),
        surgery.EditOptions,
        module="surgery",
    ),
    "join": Command(
        "chain two models, so that outputs of the first feed the second, and prove the result",
        (("join classifier.onnx head.onnx --map logits=x -o out.onnx",
          "the output logits of the first feeds the input x of the second"),
         ("join classifier.onnx head.onnx --prefix head. --keep-output logits -o out.onnx",
          "with the names of B apart, and A's output still an output")),
        (row("a", metavar="A", help="the model that runs first, or - for stdin"),
         row("b", metavar="B", help="the model that it feeds"), NEEDED, custom_ops("proof")),
        surgery.JoinOptions,
        module="surgery",
    ),
    "lift": Command(
        "divide a model: what depends on weights alone runs once, at load; both proved together",
        (("lift adapted.onnx --weights 'lora*' --prepare prepare.onnx -o out.onnx",
          "the weights are inputs of prepare.onnx, whose outputs are inputs of out.onnx"),
         ("lift adapted.onnx --prepare prepare.onnx -o out.onnx",
          "what depends on constants alone, such as DequantizeLinear of weights")),
        (
            MODEL, NEEDED,
            row("--prepare", metavar="FILE", required=True,
                help="the file of the model that runs once, whose outputs the other reads"),
            custom_ops("proof"),
        ),
        surgery.LiftOptions,
        module="surgery",
    ),
    "metadata": Command(
        "what a model says about itself: list it, set and unset entries",
        (("metadata model.onnx", "what the model says about itself"),
         ("metadata model.onnx --set author=me -o out.onnx", "the same with one entry more")),
        (MODEL, OUTPUT),
        surgery.MetadataOptions,
    ),
    "diff": Command(
        "what changed between two models",
        (("diff model.onnx out.onnx", "what changed"),
         ("diff model.onnx out.onnx --json changes.json", "for machines")),
        (row("a", metavar="A", help="an ONNX file, or - for stdin"),
         row("b", metavar="B", help="the other"), HTML),
        jobs.DiffOptions,
    ),
    "reduce": Command(
        "the smallest model that still fails a check, by delta debugging",
        (("reduce big.onnx --fails 'optimize --preset canonical' -o small.onnx",
          "the smallest model that a command of ours still fails on"),
         ("reduce big.onnx --check 'python crashes.py' --interesting-exit 139 -o small.onnx",
          "the smallest that still crashes a script of yours")),
        (
            MODEL,
            row("-o", "--output", metavar="OUT", required=True, help="the file to write"),
            row("--check", either="how", metavar="COMMAND", help="what fails on the model"),
            row("--fails", either="how", metavar="'COMMAND OPTIONS'", help="a command of onnxgrad "
                "that fails on the model, such as 'optimize --preset X', 'grad', 'check-grad': a "
                "candidate must fail with the same exit code, 1 or 3"),
        ),
        jobs.ReduceOptions,
        required=("how",),
        text=_REDUCING,
    ),
    "bench": Command(
        "measure the latency of models in turns, wall and CPU time",
        (("bench model.onnx out.onnx", "both in turns, and the ratio to the first"),
         ("bench model.onnx out.onnx --require 0.9 --threads 4",
          "exit 1 unless the second takes at most 0.9 of the time")),
        (
            row("model", nargs="+", metavar="MODEL",
                help="ONNX files of one interface; ratios are to the first"),
            HTML, custom_ops("measuring"),
        ),
        jobs.BenchOptions,
    ),
    "place": Command(
        "mark nodes with devices for onnxruntime, and show what is copied between them",
        (("place model.onnx --device 'cuda=op:Mat*'",
          "what would be copied between the devices"),
         ("place model.onnx --device 'cuda=Mat*,op:Tanh' --propagate -o placed.onnx",
          "write the marks, and those that follow from them")),
        (MODEL, row("-o", "--output", metavar="OUT",
                    help="the file to write; - is stdout; without it, only look")),
        jobs.PlaceOptions,
    ),
    "passes": Command(
        "the passes with their laws and options, and the presets",
        (("passes", "all of them, and the presets"),
         ("passes default fold-constant", "a preset with the reason for each place, and a pass")),
        (row("name", nargs="*", metavar="NAME", help="show only these passes or presets"),),
    ),
    "ops": Command(
        "how the gradient of each operator is formed",
        (("ops", "every operator"),
         ("ops MaxPool Resize", "two of them, with what holds at kinks")),
        (row("name", nargs="*", metavar="NAME", help="show only these operators"),
         row("--markdown", action="store_true", help="the whole table as a Markdown page")),
    ),
    "completion": Command(
        "a script that completes commands, options and values in your shell",
        (("completion bash", 'eval "$(onnxgrad completion bash)" in ~/.bashrc'),
         ("completion fish", "what goes to ~/.config/fish/completions/onnxgrad.fish")),
        (row("shell", choices=("bash", "zsh", "fish"), metavar="SHELL",
             help="bash, zsh or fish; the script goes where that looks for completions, in zsh "
             "into a folder of $fpath under the name _onnxgrad"),),
    ),
    "doctor": Command(
        "what is installed here, and which providers really run",
        (("doctor", "versions, and which providers run"),
         ("doctor --json - | python -m json.tool", "for machines")),
    ),
    "help": Command(
        "the documentation by topic, with examples that run as they stand",
        (("help", "the topics"), ("help gradients", "one of them; of a command its --help")),
        (row("topic", nargs="?", metavar="TOPIC",
             help="a topic or a command; default: list the topics"),),
    ),
}  # fmt: skip


def module_of(command: str) -> str:
    """Return the name of the module of `cli.commands` that runs a command."""
    return COMMANDS[command].module or command.replace("-", "_")
