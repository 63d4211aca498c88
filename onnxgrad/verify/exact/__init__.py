"""Exact proof of rewrites: both sides of a window are evaluated with exact arithmetic."""
