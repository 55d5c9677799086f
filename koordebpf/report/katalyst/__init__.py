"""Health and metrics of Katalyst's eviction manager."""
