"""Language models: bundles of a model, a tokenizer and what is known of both, and generating."""
