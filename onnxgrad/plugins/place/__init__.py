"""`place`: assigns nodes to devices, and finds the values that must be copied between devices."""
