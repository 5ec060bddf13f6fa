"""`GET /v2`: PostgreSQL's wire protocol in a WebSocket.

The service answers the start-up itself, and then passes bytes between the client and an engine connection of its own.
It reads only the types and lengths of messages, and the texts of statements if it must know something about them before
the engine runs them.
"""
