"""Rewriting decided by measurement: what may be chosen, how it is measured, and the file that the
decisions are kept in.
"""
