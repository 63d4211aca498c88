"""Chains of operators that are one operator of a newer opset, and the way back.

The equations are the function bodies that ONNX declares for the operators, read backwards, and the
spellings in which PyTorch's and TensorFlow's exporters write them.
"""
