"""Who may do what: tokens, scopes, principals. Pure; time and randomness are arguments."""
