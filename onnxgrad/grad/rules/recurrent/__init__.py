"""RNN, GRU, LSTM: sweeps over time, forwards and backwards."""
