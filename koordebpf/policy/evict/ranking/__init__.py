"""In which order candidates are evicted, and what each frees. Pure."""
