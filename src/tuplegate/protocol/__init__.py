"""The language of the service: messages, errors, events, and a first look at statements. Pure; imports nothing of
ours."""
