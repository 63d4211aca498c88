"""Operators of com.microsoft, and onnxruntime's own in the default domain."""
