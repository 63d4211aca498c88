"""Tuning: chooses rewrites by measurement, and stores the decisions in a file."""
