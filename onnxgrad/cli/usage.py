"""The commands, each with its arguments and two examples. Imports only what `--help` needs."""

from __future__ import annotations

import argparse

from onnxgrad.cli.arguments import Command, Row, into, reads, row, writes
from onnxgrad.extensions import built_in, plugged
from onnxgrad.jobs.declared import reader
from onnxgrad.jobs.groups import PRODUCTS, SPLIT
from onnxgrad.jobs.kinds import Seconds
from onnxgrad.vocabulary import STEP_FILES, TUNE_FILE, TUNE_SECONDS

MODEL = reads("model", metavar="MODEL", help="an ONNX file, or - for stdin")
OUTPUT = writes("-o", "--output", metavar="OUT", help="the file to write; - is stdout")
NEEDED = writes(*OUTPUT.names, **OUTPUT.keywords, required=True)
_PAGE = "write one self-contained HTML page"
HTML = writes("--html", metavar="FILE", help=_PAGE)


def custom_ops(title: str) -> Row:
    """Returns the row of --custom-ops, for each command that runs models in onnxruntime."""
    help = "a library of custom operators for onnxruntime; it runs with your rights"
    return reads(
        "--custom-ops", title=title, action="append", default=[], metavar="LIB.so", help=help
    )


_REDUCING = """\
--check runs a command without a shell (for a shell, write sh -c '...'). The path of a candidate is
its last argument, or replaces {}. A candidate is kept if the command fails on it: with an exit
status other than 0, or with --interesting-exit only with this status (a command ended by a signal
counts as 128 plus the signal's number), or with --says only if its output contains the text. A
check that takes longer than --check-timeout does not count as a failure.

Exit codes: 0 reduced (or as small as --timeout allowed), 2 if the check does not fail on MODEL
itself.

"""
_CI = "reports"

_PRODUCTS = {
    "jvp": "forward mode: J v; v are new inputs {}_tangent, J v outputs {}_tangent",
    "hvp": "the gradient, and H v as {}_hvp, for the Hessian H of a scalar target",
    "jacobian": "the Jacobian by each value, as TARGET_by_VALUE",
    "hessian": "the gradient, and Hessians as VALUE_VALUE_hessian",
}
COMMANDS: dict[str, Command] = {
    "optimize": Command(
        "rewrite a model into a smaller, faster one and prove that both compute the same",
        (("optimize model.onnx -o out.onnx", "rewrite, prove and write a model"),
         ("optimize '*.onnx' --out-dir small --merge always",
          "several models, all parallel products merged")),
        (
            reads("model", nargs="+", metavar="MODEL", help="an ONNX file, a glob, or - for stdin"),
            writes("-o", "--output", either="where", metavar="OUT",
                help="the file to write; - is stdout"),
            into("--out-dir", either="where", metavar="DIR",
                help="the folder to write to; files keep their names"),
            row("--dry-run", action="store_true", help="rewrite and prove, but write no model"),
            HTML,
            row("--no-config", title="rewriting", action="store_true",
                help="ignore onnxgrad.toml and pyproject.toml of this folder"),
            row("--verify", choices=("model", "each"), default="model", help="model (default): "
                "prove the whole model; each: also prove every rewrite by itself, on its own "
                "operands, which names a wrong rewrite rule at once (with --no-verify: only this)"),
            row("--no-verify", action="store_true",
                help="skip the proof of the whole model (needs no onnxruntime)"),
            writes("--lift", title="rewriting", metavar="FILE", help="move everything that "
                "depends on weights alone to this second file, which runs once at load and feeds "
                "OUT; both files are proved together"),
            row("--weights", title="rewriting", action="append", metavar="NAME",
                help="with --lift: inputs or initializers (names or globs) that FILE receives "
                "as inputs at load; may repeat (default: none; FILE depends on constants alone)"),
            row("--tune", title="tuning", action="store_true", help="measure in onnxruntime, "
                "with the provider, threads and inputs of the proof, which rewrites make the model "
                "faster, and keep only these"),
            row("--tune-time", title="tuning", type=reader(Seconds, "--tune-time"),
                metavar="SECONDS",
                help=f"seconds to measure, in addition to --timeout (default: {TUNE_SECONDS:g})"),
            writes("--tune-file", title="tuning", metavar="FILE",
                help=f"the file for the decisions (default: {TUNE_FILE} beside OUT)"),
            reads("--tune-from", title="tuning", metavar="FILE",
                help="apply the decisions of an earlier --tune without measuring; same bytes"),
            custom_ops("proof"),
        ),
        "declarations.OptimizeOptions",
    ),
    "ci": Command(
        "optimise and prove every model of a recipe, check its requirements, compare with the lock",
        (("ci", "every model of onnxgrad.toml"),
         ("ci --update --jobs 2", "two models at once; accept the results that pass")),
        (
            reads("config", nargs="?", metavar="CONFIG", help="the recipe (default: onnxgrad.toml, "
                "or [tool.onnxgrad] of pyproject.toml, in this folder)"),
            custom_ops(""),
            row("--schema", action="store_true",
                help="print the JSON schema of what --json writes"),
            writes("--junit", title=_CI, metavar="FILE", help="write the result as JUnit XML"),
            writes("--markdown", title=_CI, metavar="FILE",
                help="write the result as Markdown, for example for a job summary"),
            writes("--html", title=_CI, metavar="FILE", help=_PAGE),
            row("--annotations", title=_CI, action=argparse.BooleanOptionalAction,
                help="print a line on stderr for "
                "each model that failed or changed; GitHub shows it beside the file (default: if "
                "GITHUB_ACTIONS is true)"),
        ),
        "ci.declarations.CiOptions",
        # the recipe's `out` may be where a report goes too: places are checked when it is there
        defaults=(("makes_folders", True),),
    ),
    "grad": Command(
        "write the gradient of a model as a plain ONNX graph, checked against finite differences",
        (("grad model.onnx -o grad.onnx --wrt params --target loss",
          "the gradient of the output loss with respect to every weight"),
         ("grad model.onnx -o grad.onnx --target logits --adjoint input",
          "a target of any shape; its adjoint becomes an input")),
        (
            MODEL, OUTPUT, HTML,
            writes("--split", title=SPLIT, nargs="+", metavar="FILE", help="write the parts "
                "forward (outputs and residuals) and backward (from residuals and adjoints to "
                "gradients) to these two files, beside a manifest; or to one file, as two "
                "functions of it"),
            row("--mark", action="store_true", help="write no gradient but the model with the "
                "marks of --checkpoint; grad reads them if --checkpoint is not given"),
            row("--function", metavar="NAME", help="add the gradient of this local function, with "
                "respect to all its operands, as another function of the model"),
            *(row(f"--{kind}", title=PRODUCTS, either="of", dest="of", action="store_const",
                  const=kind, help=text) for kind, text in _PRODUCTS.items()),
            row("--casadi", title=PRODUCTS, either="of", dest="of", choices=("adj", "fwd"),
                help="a derivative file for CasADi, in its layout: adj writes adj_f.onnx (reverse "
                "mode), fwd fwd_f.onnx (forward mode), fwd of adj_f.onnx fwd_adj_f.onnx"),
            custom_ops("proof"),
        ),
        "gradient_declarations.GradOptions",
    ),
    "check-grad": Command(
        "compare a model's gradient with finite differences, value by value",
        (("check-grad model.onnx --wrt params --target loss",
          "the gradient of every weight"),
         ("check-grad model.onnx --target loss --input batch.npz --seed 1",
          "on your own values, in other directions")),
        (MODEL, custom_ops("check")),
        "gradient_declarations.CheckGradientOptions",
    ),
    "train-step": Command(
        "write a training step as a folder of plain ONNX files: loss, gradient and update",
        (("train-step model.onnx -o step --loss loss",
          "train.onnx, eval.onnx, predict.onnx, the state and the manifest"),
         ("train-step model.onnx -o step --loss 'mse{output=logits}' --optimizer 'sgd{lr=0.1}'",
          "with another loss; its labels become an input")),
        (
            reads("model", metavar="MODEL", nargs="?", help="an ONNX file, or - for stdin"),
            into("-o", "--output", metavar="FOLDER", globs=STEP_FILES,
                help="the folder for train.onnx, eval.onnx, predict.onnx, state.safetensors and "
                "manifest.json"),
            row("--training-info", either="form", action="store_true", help="write one file "
                "to -o: the model with the step as its TrainingInfoProto"),
            row("--from-training-info", either="form", action="store_true", help="write "
                "the step that --training-info stored in MODEL; options of the step are ignored"),
            reads("--seal", either="form", metavar="FOLDER", globs=("manifest.json",),
                help="accept the changed graphs of this step: only write their digests into its "
                "manifest"),
            into("--vectors", either="form", metavar="FOLDER", help="write two small steps with "
                "data and losses, for the tests of a client"),
            custom_ops("proof"),
        ),
        "training.step_declarations.TrainStepOptions",
    ),
    "fit": Command(
        "train a model on data, without the framework that made it",
        (("fit classifier.onnx --loss cross_entropy --data labelled.npz -o out.onnx",
          "train on arrays with the names of the inputs and labels; write the trained model"),
         ("fit step --data train.npz --folder run --log log.jsonl",
          "run a training step, save its state after each epoch")),
        (
            reads("model", metavar="MODEL", help="an ONNX file, or the folder of a training step"),
            writes("-o", "--output", metavar="OUT", help="the file for the trained model"),
            row("--find-lr", title="run", action="store_true", help="learning rate finder: "
                "train no model, but test rates that grow from 1e-6 to 10 in 100 steps, and print "
                "the losses (--plot draws them)"),
            custom_ops("run"),
        ),
        "training.declarations.FitOptions",
    ),
    "lora": Command(
        "add low-rank adapters (LoRA) beside weights, write or merge trained ones; proved",
        (("lora llm.onnx --targets '*attn*' --rank 8 -o small.onnx",
          "the model with adapters that change nothing; `fit --wrt '*.lora_*'` trains them"),
         ("lora tuned.onnx --onnxruntime tuned.onnx_adapter -o base.onnx",
          "trained ones as a file for onnxruntime, and the model that takes it")),
        (
            MODEL, OUTPUT,
            writes("--save", title="adapters of MODEL", metavar="FILE",
                help="write the adapters that MODEL has as a safetensors file"),
            into("--peft", title="adapters of MODEL", metavar="FOLDER",
                globs=("adapter_config.json", "adapter_model.safetensors"),
                help="write them as a folder of Hugging Face's PEFT"),
            writes("--onnxruntime", title="adapters of MODEL", metavar="FILE",
                help="write them as a file of onnxruntime's AdapterFormat; -o writes the model "
                "that takes it: their matrices are inputs with a default that changes nothing"),
            custom_ops("proof"),
        ),
        "surgery.declarations.LoraOptions",
    ),
    "verify": Command(
        "run two models and report whether they compute the same",
        (("verify model.onnx out.onnx", "equal, or the worst difference"),
         ("verify model.onnx half.onnx --rtol 1e-2 --atol 1e-3",
          "accept differences within these bounds")),
        (
            reads("a", metavar="A", help="the original: an ONNX file, or - for stdin"),
            reads("b", metavar="B", nargs="?", help="the model that should compute the same"),
            custom_ops("proof"),
        ),
        "declarations.VerifyOptions",
    ),
    "run": Command(
        "run a model once and show or save its outputs",
        (("run model.onnx --input values.npz --save outputs.npz", "the outputs by their names"),
         ("run model.onnx --dim N=2 --evaluator float64",
          "generated inputs, in onnxgrad's float64 evaluator")),
        (MODEL, custom_ops("running")),
        "declarations.RunOptions",
    ),
    "inspect": Command(
        "show a model's size, interface, operators, parameters and costs, or its graph as text",
        (("inspect model.onnx", "interface, operators, parameters"),
         ("inspect model.onnx --weights",
          "which constants are weights, and why the others are not")),
        (
            MODEL,
            row("--text", either="what", action="store_true",
                help="print the graph as text, one binding a line"),
            row("--weights", either="what", action="store_true",
                help="list each constant with its role, and why it is a weight or not (`params`)"),
            HTML,
        ),
        "declarations.InspectOptions",
    ),
    "convert-opset": Command(
        "change a model's opset (upgrade or downgrade) and prove that it computes the same",
        (("convert-opset model.onnx --to 20 -o out.onnx", "the model at opset 20"),
         ("convert-opset model.onnx --to 21 -o - | onnxgrad inspect -",
          "show the result without writing a file")),
        (MODEL, NEEDED, custom_ops("proof")),
        "declarations.ConvertOpsetOptions",
    ),
    "float16": Command(
        "convert float32 weights and computations to float16 (half precision), proved within "
        "a bound",
        (("float16 model.onnx -o out.onnx",
          "half the size; outputs may differ by 0.02 of their largest value"),
         ("float16 model.onnx -o out.onnx --keep 'Reduce*' --metric worst=0.01",
          "keep reductions in float32, with a tighter bound")),
        (MODEL, NEEDED, custom_ops("proof")),
        "declarations.Float16Options",
    ),
    "extract": Command(
        "write a subgraph, the part of a model between given values, proved against the whole",
        (("extract model.onnx --outputs hidden -o encoder.onnx",
          "the part that computes this value"),
         ("extract model.onnx --inputs hidden --outputs logits -o head.onnx",
          "the part behind it")),
        (MODEL, NEEDED),
        "surgery.declarations.ExtractOptions",
        module="surgery",
    ),
    "open-batch": Command(
        "make a fixed batch dynamic, or change the batch size (rebatch), proved row by row",
        (("open-batch fixed.onnx -o out.onnx", "a batch of any size"),
         ("open-batch scene.onnx --open height=x.2 --open width=x.3 -o out.onnx",
          "a picture of any size, if all that follows its size is certain")),
        (MODEL, NEEDED, custom_ops("proof")),
        "row_declarations.OpenBatchOptions",
    ),
    "vmap": Command(
        "map a model over a new axis of inputs: all rows in one run, proved row by row",
        (("vmap model.onnx -o out.onnx", "a new first axis in every input and output"),
         ("vmap model.onnx --map x=1,w1 -o out.onnx", "second in x, and one of the weight w1")),
        (MODEL, NEEDED, custom_ops("proof")),
        "row_declarations.VmapOptions",
        module="open_batch",
    ),
    "edit": Command(
        "bind inputs, replace weights, rename values, nodes and dimensions, change outputs; proved",
        (("edit model.onnx --rename logits=scores --drop-output loss -o out.onnx",
          "rename an output, remove another"),
         ("edit model.onnx --bind t=batch.npz --add-output hidden -o out.onnx",
          "replace the input t by its value in the file, mark the value hidden as an output")),
        (MODEL, NEEDED, custom_ops("proof")),
        "surgery.declarations.EditOptions",
        module="surgery",
    ),
    "join": Command(
        "chain (merge) two models: outputs of the first feed the second; the result is proved",
        (("join classifier.onnx head.onnx --map logits=x -o out.onnx",
          "A's output logits feeds B's input x"),
         ("join classifier.onnx head.onnx --prefix head. --keep-output logits -o out.onnx",
          "prefix B's names, and keep A's output as an output")),
        (reads("a", metavar="A", help="the model that runs first, or - for stdin"),
         reads("b", metavar="B", help="the model that it feeds"), NEEDED,
         custom_ops("proof")),
        "surgery.declarations.JoinOptions",
        module="surgery",
    ),
    "preprocess": Command(
        "put preprocessing and heads inside a model (images, tokens; labels, NMS), proved in NumPy",
        (("preprocess vision.onnx --before imagenet --after 'softmax,top-k{k=5}' -o out.onnx",
          "uint8 images [N,H,W,3] of any size in, the five best classes out"),
         ("preprocess yolov8.onnx --before 'letterbox{size=640},to-float' --after "
          "'boxes{format=yolov8},nms,to-image' -o out.onnx",
          "boxes in pixels of the image, by steps")),
        (MODEL, NEEDED, custom_ops("proof")),
        "surgery.declarations.PreprocessOptions",
        module="surgery",
    ),
    "lift": Command(
        "split a model: the part that depends on weights alone runs once, at load; proved together",
        (("lift adapted.onnx --weights 'lora*' --prepare prepare.onnx -o out.onnx",
          "prepare.onnx reads these weights, and its outputs are inputs of out.onnx"),
         ("lift adapted.onnx --prepare prepare.onnx -o out.onnx",
          "move computations on constants, such as DequantizeLinear of weights")),
        (
            MODEL, NEEDED,
            writes("--prepare", metavar="FILE", required=True,
                help="the file for the model that runs once; its outputs are inputs of OUT"),
            custom_ops("proof"),
        ),
        "surgery.declarations.LiftOptions",
        module="surgery",
    ),
    "rebase": Command(
        "put new weights into an optimised model without optimising again, with a proof",
        (("rebase small.onnx --weights retrained.onnx -o out.onnx",
          "small.onnx comes from `optimize --rebasable`, which wrote small.onnx.rebase"),
         ("rebase small.onnx --weights state.safetensors --map w2=fc.weight -o out.onnx",
          "a file of weights, one of which has another name there")),
        (
            reads("model", metavar="MODEL", help="a model of `optimize --rebasable`"),
            reads("--weights", metavar="FILE", required=True, action="append",
                help="another export of the architecture (.onnx), or arrays by the names of "
                "initializers (.safetensors, .npz); twice: an export, and adapters that were "
                "trained beside it (.safetensors of `lora --save`, or a folder of PEFT)"),
            NEEDED, custom_ops("proof"),
        ),
        "surgery.declarations.RebaseOptions",
    ),
    "metadata": Command(
        "list a model's metadata, set or remove entries",
        (("metadata model.onnx", "list the metadata"),
         ("metadata model.onnx --set author=me -o out.onnx", "add an entry")),
        (MODEL, OUTPUT),
        "surgery.declarations.MetadataOptions",
    ),
    "diff": Command(
        "list the differences between two models",
        (("diff model.onnx out.onnx", "print the differences; exit code 1 if there are any"),
         ("diff model.onnx out.onnx --json changes.json", "also write them as JSON")),
        (reads("a", metavar="A", help="an ONNX file, or - for stdin"),
         reads("b", metavar="B", help="the ONNX file to compare with A"), HTML),
        "declarations.DiffOptions",
    ),
    "reduce": Command(
        "find the smallest model that still fails a check, by delta debugging",
        (("reduce big.onnx --fails 'optimize --preset canonical' -o small.onnx",
          "the smallest model on which this command still fails"),
         ("reduce big.onnx --check 'python crashes.py' --interesting-exit 139 -o small.onnx",
          "the smallest model that still crashes your script")),
        (
            MODEL,
            writes("-o", "--output", metavar="OUT", required=True, help="the file to write"),
            row("--check", either="how", metavar="COMMAND",
                help="a command that fails on the model; see below"),
            row("--fails", either="how", metavar="'COMMAND OPTIONS'", help="a command of onnxgrad "
                "that fails on the model, such as 'optimize --preset X', 'grad', 'check-grad': a "
                "candidate must fail with the same exit code, 1 or 3"),
        ),
        "declarations.ReduceOptions",
        required=("how",),
        text=_REDUCING,
    ),
    "bench": Command(
        "measure the latency of models in turns, in wall and CPU time",
        (("bench model.onnx out.onnx", "run both in turns, print the ratio to the first"),
         ("bench model.onnx out.onnx --require 0.9 --threads 4",
          "exit with 1 if the second takes more than 0.9 of the time")),
        (
            reads("model", nargs="+", metavar="MODEL",
                help="ONNX files with equal inputs; ratios are to the first"),
            HTML, custom_ops("measuring"),
        ),
        "declarations.BenchOptions",
    ),
    "passes": Command(
        "list the passes with their laws and options, and the presets",
        (("passes", "all of them, and the presets"),
         ("passes default fold-constant",
          "one preset, with the reason for each position, and one pass")),
        (row("name", nargs="*", metavar="NAME", help="show only these passes or presets"),),
    ),
    "ops": Command(
        "show how each operator is differentiated",
        (("ops", "every operator"),
         ("ops MaxPool Resize", "two operators, with their behaviour at kinks")),
        (row("name", nargs="*", metavar="NAME", help="show only these operators"),
         row("--markdown", action="store_true", help="print the table as a Markdown page")),
    ),
    "completion": Command(
        "print a script that completes commands, options and values in your shell",
        (("completion bash", 'eval "$(onnxgrad completion bash)" in ~/.bashrc'),
         ("completion fish", "store the output as ~/.config/fish/completions/onnxgrad.fish")),
        (row("shell", choices=("bash", "zsh", "fish"), metavar="SHELL",
             help="bash, zsh or fish; store the script where the shell looks for completions, "
             "for zsh in a folder of $fpath as _onnxgrad"),),
    ),
    "doctor": Command(
        "list installed versions, and the providers that run on this machine",
        (("doctor", "versions and providers"),
         ("doctor --json - | python -m json.tool", "the same as JSON")),
    ),
    "help": Command(
        "print the documentation by topic, or search it",
        (("help gradients", "the page of this topic; for a command its --help"),
         ("help dynamic batch", "the commands, options and passages with these words")),
        (row("topic", nargs="*", metavar="TOPIC",
             help="a topic, a command, or words to search for; default: list the topics"),),
    ),
}  # fmt: skip


COMMANDS |= {name: plugged("commands", name) for name in built_in("commands")}


def module_of(command: str) -> str:
    """Returns the module that runs a command."""
    module = COMMANDS[command].module or command.replace("-", "_")
    return module if "." in module else f"onnxgrad.cli.commands.{module}"
