"""What Katalyst's annotations, labels and configuration say. Pure."""
