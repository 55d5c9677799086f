"""GPUs, by the libraries of their makers."""
