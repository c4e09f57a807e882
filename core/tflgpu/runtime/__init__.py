"""From a source and a provider to a session that runs."""
