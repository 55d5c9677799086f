"""Metrics of what colocation needs: series, reports, runtime hooks, batch resources."""
