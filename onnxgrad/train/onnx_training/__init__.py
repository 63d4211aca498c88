"""Training in the terms of ONNX itself: TrainingInfoProto, and the operators of
ai.onnx.preview.training.
"""
