"""Peak prediction: what latency-sensitive pods will use, from histograms of what they used."""
