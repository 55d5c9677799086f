"""Guards, then evict or kill; every action ends in an `Outcome`. Ranks no pods."""
