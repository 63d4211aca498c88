"""Tuning: chooses rewrites by measurement, and stores the decisions in a file."""

LATE = "the time was up"  # why a choice was not measured
