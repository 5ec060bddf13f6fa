"""The console in the browser: its built files, and where a page finds the planes.

The files are made from the folder `console/` of the repository by `tools/console.py`, into `built/` beside this module.
Nothing here knows what the pages do: they use the same routes as every other client.
"""
