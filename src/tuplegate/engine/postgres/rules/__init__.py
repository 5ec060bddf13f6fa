"""Rules: what is done with a statement or a block, by what is known of it."""
