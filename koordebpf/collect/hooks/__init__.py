"""What runtime hooks decide from: directories of pods and containers, and what this kernel has."""
