"""How much CPU best-effort pods may have, and the values that hold them to it. Pure. README.md says who counts."""
