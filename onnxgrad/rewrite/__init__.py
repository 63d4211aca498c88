"""Laws as patterns: the pattern language, the matcher, the worklist engine, families of parallel
branches.
"""
