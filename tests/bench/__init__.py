"""Benchmarks: `make bench`. They print figures and compare; they assert nothing."""
