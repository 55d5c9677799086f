"""libbpf by ctypes: objects, links, maps, ring buffers, iterators, and the health of programs."""
