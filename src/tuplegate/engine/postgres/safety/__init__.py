"""Keeps transactions serializable, connections clean, and one tenant from using up what all share."""
