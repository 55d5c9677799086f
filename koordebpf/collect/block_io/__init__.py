"""What the strategy of block IO decides from: directories of pods, and what volumes and names of devices lie on."""
