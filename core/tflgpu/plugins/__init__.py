"""What plugins bring: hook specifications, their host, and the registry of all that they gave."""
