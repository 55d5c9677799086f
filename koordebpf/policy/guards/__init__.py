"""Rules that forbid an eviction: limits, budgets, what earlier evictions brought. Pure."""
