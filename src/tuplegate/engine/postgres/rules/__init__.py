"""Rules that decide how a statement or a block runs, by the facts about it."""
