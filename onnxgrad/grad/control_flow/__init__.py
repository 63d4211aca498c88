"""Gradients of If, Loop and Scan."""
