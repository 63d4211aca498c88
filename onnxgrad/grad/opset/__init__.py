"""Raising older models to the opset whose operators the gradient rules emit."""
