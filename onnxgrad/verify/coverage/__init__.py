"""The coverage of a proof: the decisions of a model that its runs reached, as in a test suite."""
