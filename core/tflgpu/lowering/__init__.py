"""From nodes to kernels: what a rule gets (views, layouts, capabilities) and gives."""
