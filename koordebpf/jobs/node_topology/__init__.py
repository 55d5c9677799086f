"""NodeResourceTopology: the CPUs and NUMA nodes of this node, and what is reserved of them."""
