"""What outlives a tick: audit, write-ahead log, eviction budget, pod list, recordings."""
