"""Several engines behind one service."""
