"""Runs models in onnxruntime, in child processes that may die."""
