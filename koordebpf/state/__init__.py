"""The node as one immutable value per tick, and the short memories it is made from. Knows no thresholds."""
