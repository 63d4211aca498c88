"""Training in ONNX's own terms: TrainingInfoProto, and the operators of
ai.onnx.preview.training.
"""
