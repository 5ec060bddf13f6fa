"""The console in the browser: its built files, and the addresses of the planes for its pages.

The files are made from the folder `console/` of the repository by `tools/console.py`, into `built/` beside this module.
Nothing here depends on the pages: they use the same routes as every other client.
"""
