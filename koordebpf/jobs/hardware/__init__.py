"""Counters of hardware: instructions of CPUs, GPUs, cold memory."""
