"""The graph: values, nodes, and their rewriting."""
