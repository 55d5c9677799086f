"""Who goes, in which order, and what that gives back. Pure."""
