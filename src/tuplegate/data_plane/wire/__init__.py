"""`GET /v2`: PostgreSQL's wire protocol in a WebSocket.

The service answers the start-up itself, and then passes the bytes of the client and of an engine connection of its own
on to each other. Of what it passes on it looks at the types and lengths of messages, and at the texts of statements
where something must be known of them before the engine runs them.
"""
