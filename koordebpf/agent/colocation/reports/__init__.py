"""Reports of the node to the API server in koordlet's place, and what is shown of them."""
