"""What few nodes have to be measured: counters of CPUs, GPUs, cold memory; and what a node consists of."""
