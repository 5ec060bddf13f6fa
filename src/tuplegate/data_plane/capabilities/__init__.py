"""What the engine that is really there can do: probes, run on it, and what came of them."""
