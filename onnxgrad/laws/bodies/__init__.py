"""Operators of com.microsoft as graphs of ONNX operators."""
