"""Older models are raised to the opset whose operators the gradient rules emit."""
