"""How much each organization, and each stranger, may ask at a time and in a minute."""
