"""What runtime hooks want of pods, for people and for `koordebpf pod explain`."""
