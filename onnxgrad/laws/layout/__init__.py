"""Values in another order of axes: what computes with them as well, and where the order had better
change.
"""
