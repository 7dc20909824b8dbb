"""Bundled agents: networks, the batched inference path, PPO, and the commands that train and evaluate them."""
