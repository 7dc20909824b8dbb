"""Measurements of the back ends, their peers and the learning of the agents, and the pages that show them."""
