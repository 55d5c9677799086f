"""CPU burst: what is measured of containers that have a CPU limit, and how a decision sees it."""
