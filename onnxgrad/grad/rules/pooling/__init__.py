"""Windows that keep the largest element, the mean or a norm."""
