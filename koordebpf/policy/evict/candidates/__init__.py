"""Which pods a feature may evict, and why not the others. Pure."""
