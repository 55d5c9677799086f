"""The composition root: wires the rooms into one loop. No policy."""
