"""Shared parts of the export scripts: building, randomising, exporting and checking PyTorch
models.
"""
