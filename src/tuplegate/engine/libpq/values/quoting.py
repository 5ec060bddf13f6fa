"""Writes names and texts as SQL."""


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Quote a text without backslashes."""
    return "'" + text.replace("'", "''") + "'"
