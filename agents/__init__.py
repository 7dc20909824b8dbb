"""Bundled agents: networks, the batched inference path, PPO, DQN, evolution strategies, and the commands."""
