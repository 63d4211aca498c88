"""Operators of com.microsoft, and onnxruntime's additions to the default domain."""
