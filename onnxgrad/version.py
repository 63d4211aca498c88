"""The version. The build reads it from this line, as do `onnxgrad.__version__` and `onnxgrad
doctor`.
"""

__version__ = "0.1.0"
