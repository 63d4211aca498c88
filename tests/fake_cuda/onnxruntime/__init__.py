"""The installed onnxruntime, which says that it has CUDA and runs on the CPU: plumbing alone, no numbers of CUDA.

`FAKE_CUDA` holds words: `broken` (the provider does not start), `preload` (it starts once its libraries are loaded),
`fails` (they cannot be loaded), `host` (a profile counts the CPU's arena alone, not inputs and weights), `uncounted` (it counts
nothing). Operators of `CPU_ONLY` have no kernel there. `FAKE_CUDA_LOG` names a file that gets a
line for each session.
"""

import json
import os
import sys
import types
from collections import defaultdict
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_real = PathFinder.find_spec("onnxruntime", [p for p in sys.path if os.path.abspath(p) != _HERE])
__path__ = list(_real.submodule_search_locations)
with open(_real.origin, encoding="utf-8") as _file:
    exec(compile(_file.read(), _real.origin, "exec"), globals())

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
CPU_ONLY = {
    "TreeEnsembleRegressor",
    "Shape",
    "Size",
    "NonMaxSuppression",
    "Unique",
    "StringNormalizer",
}
_words = os.environ.get("FAKE_CUDA", "").split()
_state = {"loaded": False}
_RealSession, _RealValue = InferenceSession, OrtValue  # noqa: F821
_from_numpy = _RealValue.ortvalue_from_numpy


def get_available_providers():
    return [CUDA, CPU]


def preload_dlls(**_):
    if "fails" in _words:
        raise RuntimeError("libcudart.so.12: cannot open shared object file")
    _state["loaded"] = True


def _starts():
    return "broken" not in _words and ("preload" not in _words or _state["loaded"])


class InferenceSession(_RealSession):
    def __init__(self, model, options=None, providers=None, provider_options=None, **more):
        names = [p[0] if isinstance(p, tuple) else p for p in providers or []]
        self._cuda = CUDA in names and _starts()
        super().__init__(model, options, providers=[CPU], **more)
        self._copied = _weights(model) if options and options.enable_profiling else 0
        if "FAKE_CUDA_LOG" in os.environ:
            with open(os.environ["FAKE_CUDA_LOG"], "a", encoding="utf-8") as log:
                log.write(f"{'cuda' if self._cuda else 'cpu'}\n")

    def run(self, names, feeds, *more):
        self._copied += sum(array.nbytes for array in feeds.values())
        return super().run(names, feeds, *more)

    def end_profiling(self):
        """The profile, with the nodes on CUDA and what a device would hold beside its arena's values."""
        path = super().end_profiling()
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
        for event in events:
            args = event["args"]
            if "op_name" in args and args["op_name"] not in CPU_ONLY:
                args["provider"] = CUDA
            if "uncounted" in _words:
                args.pop("mem_in_use_peak", None)
            elif "mem_in_use_peak" in args and "host" not in _words:
                args["mem_in_use_peak"] = str(int(args["mem_in_use_peak"]) + self._copied)
        with open(path, "w", encoding="utf-8") as file:
            for event in events:  # as onnxruntime writes them
                name, args = event["name"], json.dumps(event["args"], separators=(",", " : "))
                file.write(f'{{"cat" : "Node","name" :"{name}","args" : {args}}},\n')
        return path

    def get_providers(self):
        return [CUDA, CPU] if self._cuda else [CPU]

    def get_provider_graph_assignment_info(self):
        found = defaultdict(list)
        for part in super().get_provider_graph_assignment_info():
            for node in part.get_nodes():
                found[CPU if node.op_type in CPU_ONLY else CUDA].append(node)
        return [
            types.SimpleNamespace(ep_name=n, get_nodes=lambda ns=ns: ns) for n, ns in found.items()
        ]


def _weights(model):
    """Bytes of the initializers, which a device has copies of."""
    import onnx

    proto = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
    return sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in proto.graph.initializer)


def _on_device(array, device="cpu", *more, **options):
    if device == "cuda" and not _starts():
        raise RuntimeError("CUDA libraries are not loaded")
    return _from_numpy(array)


OrtValue.ortvalue_from_numpy = staticmethod(_on_device)  # noqa: F821
