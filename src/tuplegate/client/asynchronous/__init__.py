"""The client, written with async and await. `tuplegate.client.synchronous` is made of it: see tools/sync_client.py."""
