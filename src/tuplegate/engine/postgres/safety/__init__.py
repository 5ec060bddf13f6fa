"""Keeps transactions serializable and databases within their bounds, and knows what is left on connections."""
