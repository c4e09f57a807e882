"""From nodes to kernels: the views, layouts and capabilities that a rule gets, and its
dispatches."""
