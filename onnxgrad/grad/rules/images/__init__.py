"""Operators that sample an image at computed places, and regions of interest."""
