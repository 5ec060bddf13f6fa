"""The DB-API with async and await. tools/sync_client.py generates `tuplegate.dbapi.synchronous` from it."""
