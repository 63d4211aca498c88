"""Chains of operators that stand for one operator of a newer opset, and the reverse.

The equations are ONNX's function bodies of these operators, read backwards, and the chains that the
exporters of PyTorch and TensorFlow write.
"""
