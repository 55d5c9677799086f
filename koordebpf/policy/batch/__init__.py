"""What best-effort and mid pods may request of a node: batch and mid resources, with every term of the sum."""
