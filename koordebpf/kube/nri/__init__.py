"""NRI, by which a container runtime lets plugins adjust containers before their first instruction runs."""
