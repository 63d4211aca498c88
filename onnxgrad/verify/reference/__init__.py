"""The float64 reference: any ONNX model evaluated by numpy in float64."""
