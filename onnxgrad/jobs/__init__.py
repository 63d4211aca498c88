"""The jobs of onnxgrad. A job is one declaration of its options and one driver.

`declarations.py` declares the options of each job as fields of a frozen dataclass; groups that jobs
share (`groups.py`) are base classes:

    @frozen(kw_only=True)
    class OptimizeOptions(Proof):
        job: ClassVar[str] = "optimize"
        merge: Merge = option("auto", "parallel products into one: auto (default) where it pays")

Everything else is made of a declaration: by `keywords.py` the Python function
(`onnxgrad/functions.py`, with its stub by scripts/make_stubs.py), by `declared.py` the rest:
`add_flags` and `from_flags` the command, `keys_of` the keys of a recipe, `config_of` the options of
Olive's pass, `table_of` a table of the help. The type of a field is its check: a `Literal` becomes
choices, a sequence or a table a flag that repeats, `Annotated[int, Range(1)]` a bound. A kind of
value that a shell writes in its own way (NAME=SIZE) is a class with `check`, `read` and `join` in
`kinds.py`.

The driver of a job is in a file of the same name. It accepts a model, the options, and hooks of its
caller: `optimize(model, OptimizeOptions(...), Hooks(on_stage=..., write=...))` returns an `Outcome`
with the result or the error. The command prints the outcome, Python returns its model, `ci` checks
it against the recipe, and Olive saves it; none of them assembles passes or proofs.

To add a job: declare its options, write its function in `onnxgrad/functions.py`, and let the
command call `from_flags` and the driver. Flags that only the command has (where to write, `--html`)
are rows in `onnxgrad/cli/usage.py`.
"""
