"""Measurements: paired timing, throughput of the back ends and their peers, start-up cost, the demonstration."""
