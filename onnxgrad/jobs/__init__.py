"""The jobs of onnxgrad. A job is one declaration of its options and one driver.

`declarations.py` declares the options of each job as fields of a frozen dataclass; groups that jobs
share (`groups.py`) are base classes:

    @dataclass(frozen=True, kw_only=True)
    class OptimizeOptions(Proof):
        job: ClassVar[str] = "optimize"
        merge: Merge = option("auto", "parallel products into one: auto (default) where it pays")

`declared.py` makes everything else of a declaration: `from_keywords` the Python function
(`onnxgrad/functions.py`, with its stub by scripts/make_stubs.py), `add_flags` and `from_flags` the
command, `keys_of` the keys of a recipe, `config_of` the options of Olive's pass, `table_of` a table
of the help. The type of a field is its check: a `Literal` becomes choices, a sequence or a table a
flag that repeats, `Annotated[int, Range(1)]` a bound. A kind of value that a shell writes in its
own way (NAME=SIZE) is a class with `check`, `read` and `join` in `groups.py`.

The driver of a job, in a file called as the job, takes a model and the options; whoever calls it
takes part by hooks: `optimize(model, OptimizeOptions(...), Hooks(on_stage=..., write=...))` returns
an `Outcome` with what was done, or the error. The command shows it, Python returns its model, `ci`
holds it to the recipe, Olive saves it; none of them assembles passes or proofs.

To convert a job: declare its options, write `onnxgrad/functions.py`'s function of it, let the
command call `from_flags` and the driver, and delete the flags that were written by hand. Flags that
only the command has (where to write, `--html`) stay rows beside the command.
"""
