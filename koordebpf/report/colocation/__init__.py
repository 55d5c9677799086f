"""Pages on colocation: how a number came to be."""
