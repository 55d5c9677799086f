"""Which pods are evicted, in which order, and what that releases. Pure."""
