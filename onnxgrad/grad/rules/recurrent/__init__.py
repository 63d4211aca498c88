"""RNN, GRU, LSTM: a sweep over time, forward and back."""
