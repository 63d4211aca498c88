"""The coverage of a proof: which decisions of a model its runs reached, as in a test suite."""
