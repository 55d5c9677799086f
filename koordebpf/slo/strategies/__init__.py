"""The parts of a NodeSLO, one module each."""
