"""Models of several subgraphs, with state, and with shapes that come when the model runs: what can
be compiled is, piece by piece, and the host decides which piece runs next."""
