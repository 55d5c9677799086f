"""Stalls of memory by pod: sums, windows, shares, and the ledger of who caused whose. Pure."""
