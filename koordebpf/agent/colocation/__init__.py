"""What colocation needs of a node beside eviction and suppression: usage series, prediction and reports."""
