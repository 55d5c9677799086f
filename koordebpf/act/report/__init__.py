"""Reports of the node as objects of the API server, each from a thread of its own."""
