"""What is predicted of a node: training of its models, and what of prod pods' requests may be used again. Pure."""
