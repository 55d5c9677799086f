"""Write, reclaim and freeze for the ladder, and undo it."""
