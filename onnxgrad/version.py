"""The version, written once: the build reads this line, and so do `onnxgrad.__version__` and
`onnxgrad doctor`.
"""

__version__ = "0.1.0"
