"""What is known of the node at one moment: samples, rates, frames, `NodeView`. Pure; knows no thresholds."""
