"""Records of what stands behind a token: keys, sessions, and the codes that open them."""
