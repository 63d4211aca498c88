"""Gradients of If, Loop and Scan: bodies run again in blocks of their own."""
