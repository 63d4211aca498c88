"""Coverage of a proof: how much of what a model decides its runs reached, as in a test suite."""
