"""Rights: tokens, scopes, principals, limits. Pure; time and randomness are arguments."""
