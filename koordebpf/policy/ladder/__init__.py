"""The ladder: milder rungs before an eviction, each judged by its effect. Pure."""
