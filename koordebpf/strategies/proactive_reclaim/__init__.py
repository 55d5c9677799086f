"""Proactive reclaim: best-effort pods are kept trimmed below pressure, so that fewer are evicted."""
