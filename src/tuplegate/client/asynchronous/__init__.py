"""The client, written with async and await. tools/sync_client.py generates `tuplegate.client.synchronous` from it."""
