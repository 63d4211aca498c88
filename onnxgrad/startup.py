"""Steps before the other imports, which take half a second."""

# `signal` imports enum, which takes longer than everything in this file
import _signal  # type: ignore[import-not-found]  # typeshed has none
import os
import sys


def _starts_us() -> bool:
    """Whether Python was started as `onnxgrad` or `python -m onnxgrad`, not by a program that
    imports us.
    """
    if sys.argv[:1] == ["-m"]:  # its value while the package's __init__ runs
        words = sys.orig_argv
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["onnxgrad"]
    return os.path.basename(sys.argv[0] if sys.argv else "") in ("onnxgrad", "onnxgrad.exe")


# evaluated once: `python -m` changes sys.argv as soon as the package is imported
IS_PROGRAM = _starts_us()


def end_at_interrupt() -> None:
    """Lets Ctrl-C end the program without a traceback, before and after `cli.app.main` handles
    signals.
    """
    if IS_PROGRAM and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


end_at_interrupt()

# onnxruntime wheels send telemetry, and store an identifier and a database in the home folder,
# unless this is set before the import: here, in children, in workers, by plugins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# After each threaded product, OpenBLAS's threads (of numpy) would spin for 25 ms, beside whatever
# else runs, such as a proof's processes. 2**4 cycles: they sleep at once. Libraries in whose
# process we are keep their own setting.
IDLE_THREADS_SLEEP = ("OPENBLAS_THREAD_TIMEOUT", "4")
if IS_PROGRAM:
    os.environ.setdefault(*IDLE_THREADS_SLEEP)
    sys.setswitchinterval(0.0005)  # threads that wait for child processes go on sooner
