"""Two models compared value by value: `pairs` finds the values that stand for each other."""
