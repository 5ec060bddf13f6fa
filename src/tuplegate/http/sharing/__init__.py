"""Shares memory, turns and places among connections, so that none lives at the cost of others."""
