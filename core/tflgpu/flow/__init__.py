"""Models of several subgraphs, with state, or with shapes that are known only at run time: compiled
pieces, and a host that decides which piece runs next."""
