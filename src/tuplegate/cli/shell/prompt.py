"""The terminal of the shell: multi-line editing with history, colours and completion."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import completion_is_selected, has_focus, is_searching
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import PostgresLexer

from tuplegate.cli.output import has_color
from tuplegate.cli.shell.commands import COMMANDS
from tuplegate.cli.shell.completion.completion import Candidate, suggest, suggest_relations
from tuplegate.cli.shell.completion.names import NameKeeper
from tuplegate.cli.shell.shell import Shell, find_command
from tuplegate.cli.splitting import Reader, is_complete

_FILES = frozenset({"\\i", "\\e"})
_RELATIONS = frozenset({"\\d", "\\dt", "\\dv", "\\dm", "\\ds"})
_CHOICES = {"\\x": ("on", "off", "auto"), "\\timing": ("on", "off"), "\\pset": ("pager on", "pager off")}


def create_history_file() -> Path:
    """Return the history file, created for its owner alone: what people type can hold secrets."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    file = Path(state).expanduser() / "tuplegate" / "history"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    file.chmod(0o600)
    return file


class ShellCompleter(Completer):
    """Completes from memory, without waiting."""

    def __init__(self, shell: Shell, keeper: NameKeeper) -> None:
        self._shell = shell
        self._keeper = keeper
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before, after = document.text_before_cursor, document.text_after_cursor
        line = document.current_line_before_cursor
        if line.startswith("\\"):
            yield from self._complete_command(line, complete_event)
            return
        for found in suggest(self._shell.reader.pending + before, after, self._keeper.names):
            yield _make_completion(found)

    def _complete_command(self, line: str, event: CompleteEvent) -> Iterator[Completion]:
        name, blank, rest = line.partition(" ")
        if not blank:
            found = (known for known in COMMANDS if known.startswith(name))
            yield from (Completion(known, -len(name), display_meta=COMMANDS[known].help) for known in found)
        elif name in _CHOICES:
            yield from (Completion(choice, -len(rest)) for choice in _CHOICES[name] if choice.startswith(rest))
        elif name in _FILES or (name == "\\copy" and "'" in rest):
            path = rest.rpartition("'")[2]
            yield from self._paths.get_completions(Document(path, len(path)), event)
        elif name.removesuffix("+") in _RELATIONS or name == "\\copy":
            yield from map(_make_completion, suggest_relations(rest, self._keeper.names))


def _make_completion(found: Candidate) -> Completion:
    return Completion(found.text, -found.typed, display_meta=found.kind)


def _make_bindings(shell: Shell) -> KeyBindings:
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER) & ~is_searching

    @bindings.add("enter", filter=typing & ~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Run a complete statement, or continue it on another line."""
        buffer = event.current_buffer
        text = buffer.text
        if is_complete(shell.reader.pending, text) or find_command(text) is not None:
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @bindings.add("enter", filter=typing & completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Accept the selected completion."""
        event.current_buffer.complete_state = None

    @bindings.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def read_typed_texts(shell: Shell) -> Iterator[str]:
    """Yield the typed texts: complete statements and commands, each of one or more lines."""
    history = FileHistory(str(create_history_file()))
    keeper = shell.names = NameKeeper(shell.client)
    keeper.refresh()
    shell.remember = history.append_string

    def continuation(width: int, line: int, wrapped: int) -> str:
        if wrapped:
            return " " * width
        reader = Reader()
        lines = asked.default_buffer.text.split("\n")[:line]
        list(reader.feed(shell.reader.pending + "\n".join(lines) + "\n"))
        return shell.continuation(reader.inside).rjust(width)

    asked: PromptSession[str] = PromptSession(
        history=history,
        lexer=PygmentsLexer(PostgresLexer) if has_color() else None,
        completer=ShellCompleter(shell, keeper),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation=continuation,
        key_bindings=_make_bindings(shell),
        enable_open_in_editor=True,
    )
    while True:
        try:
            yield asked.prompt(lambda: shell.prompt)
        except KeyboardInterrupt:
            shell.reader.clear()  # drop the text being typed
        except EOFError:
            return
