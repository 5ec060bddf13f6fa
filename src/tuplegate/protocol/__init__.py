"""The words both sides speak: messages, values, errors, events. Pure; imports nothing of ours."""
