"""Adapters of engines that spread work over machines; each module is for one of them."""
