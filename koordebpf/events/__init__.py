"""Records of the BPF programs: their layout, their decoders, their values. No I/O."""
