"""Peaks of usage predicted from decaying histograms: the numbers, the histograms and the models of a node. Pure."""
