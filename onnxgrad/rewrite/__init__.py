"""Rewrite rules ("laws"): the pattern language, the matcher, the worklist engine, and families of
parallel branches.
"""
