"""The control plane: routes that manage sessions, organizations, databases, keys and engines."""
