"""Metrics, audit, Events, sentences. Acts on nothing."""
