"""What operators of com.microsoft compute, as graphs of ONNX operators."""
