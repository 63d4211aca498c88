"""`onnxgrad completion`: commands, options and their values in a shell, from the parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from functools import cache

from onnxgrad.cli.app import parser_for
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.frozen import frozen
from onnxgrad.help import TOPICS
from onnxgrad.vocabulary import LOSSES, OPTIMIZERS, PASSES, PRESETS, SCHEDULES

# words to complete where the parser accepts any text, by option or command
_WORDS: dict[str, tuple[str, ...]] = {
    "--passes": (*PRESETS, *PASSES),
    "--without": PASSES,
    "--print-after": PASSES,
    "--loss": LOSSES,
    "--optimizer": OPTIMIZERS,
    "--schedule": SCHEDULES,
    "--rate": SCHEDULES,
    "--wrt": ("params",),
    "--checkpoint": ("auto",),
    "passes": (*PRESETS, *PASSES),
    "help": (*TOPICS, *COMMANDS),
}
# metavars of files
_FILES = re.compile(r"FILE|OUT$|MODEL|NPZ|DIR|FOLDER|CONFIG|LIB\.so|^[AB]$")


@frozen
class _Argument:
    """An argument of a command: the names of the option (none if positional), whether it takes a
    value, the words to choose from, and whether it is a file.
    """

    names: tuple[str, ...]
    takes: bool
    words: tuple[str, ...]
    files: bool
    what: str


@cache
def _table() -> dict[str, tuple[str, tuple[_Argument, ...]]]:
    """Returns every command with its summary and its arguments."""
    parser = parser_for([], every=True)
    (commands,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
    return {
        name: (COMMANDS[name].summary, tuple(_argument(name, action) for action in sub._actions))
        for name, sub in commands.items()
    }


def _argument(command: str, action: argparse.Action) -> _Argument:
    key = action.option_strings[-1] if action.option_strings else command
    words = _WORDS.get(key) or tuple(map(str, action.choices or ()))
    files = not words and bool(_FILES.search(str(action.metavar or "")))
    what = re.split(r"[;:(]", (action.help or "").replace("%%", "%"))[0].strip()
    return _Argument(tuple(action.option_strings), action.nargs != 0, words, files, what)


def _cases() -> Iterator[tuple[list[str], _Argument]]:
    """Yields each `COMMAND --option` that takes a value, with its argument."""
    for command, (_, arguments) in _table().items():
        for one in arguments:
            if one.takes and one.names:
                yield [f"{command} {name}" for name in one.names], one


def _positional(command: str) -> tuple[str, ...]:
    """Returns the words for positional arguments; empty if they are files."""
    return tuple(w for one in _table()[command][1] if not one.names for w in one.words)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def bash() -> str:
    """Returns the script for bash 3.2 and later."""
    values = "\n".join(
        f"        {' | '.join(map(_quoted, keys))}) words={_quoted(' '.join(one.words))} ;;"
        for keys, one in _cases()
        if one.words
    )
    open_ones = " | ".join(_quoted(k) for keys, one in _cases() if not one.words for k in keys)
    options = "\n".join(
        f"            {command}) words={_quoted(' '.join(n for a in args for n in a.names))} ;;"
        for command, (_, args) in _table().items()
    )
    places = "\n".join(
        f"            {command}) words={_quoted(' '.join(_positional(command)))} ;;"
        for command in _table()
        if _positional(command)
    )
    return f"""\
# completion of onnxgrad for bash, made by `onnxgrad completion bash`
_onnxgrad() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="" words="" begun="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${{COMP_WORDS[i]}}" in
            -*) ;;
            *) command="${{COMP_WORDS[i]}}"; break ;;
        esac
    done
    # bash takes --option=value for three words
    if [[ "$current" == "=" ]]; then current=""
    elif [[ "$previous" == "=" ]]; then previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    COMPREPLY=()
    case "$command $previous" in
{values}
        {open_ones}) return ;;
    esac
    if [[ -z "$words" && -z "$command" ]]; then
        words={_quoted(" ".join((*COMMANDS, "--help", "--version")))}
    elif [[ -z "$words" && "$current" == -* ]]; then
        case "$command" in
{options}
        esac
    elif [[ -z "$words" ]]; then
        case "$command" in
{places}
        esac
    fi
    # complete the last word of a list with commas
    if [[ "$previous" == --passes && "$current" == *,* ]]; then begun="${{current%,*}},"; fi
    # nothing here: files, as ever
    COMPREPLY=($(compgen -P "$begun" -W "$words" -- "${{current#"$begun"}}"))
}}
complete -o default -F _onnxgrad onnxgrad
"""


def zsh() -> str:
    """Returns the script for zsh with compinit."""
    values = "\n".join(
        f"        ({' | '.join(map(_quoted, keys))}) {_zsh_value(one)}; return ;;"
        for keys, one in _cases()
    )
    names = {
        command: " ".join(_quoted(f"{n}:{one.what}") for one in arguments for n in one.names)
        for command, (_, arguments) in _table().items()
    }
    options = "\n".join(
        f"            ({command}) said=({described}) ;;" for command, described in names.items()
    )
    places = "\n".join(
        f"        ({command}) compadd -- {' '.join(_positional(command))}; return ;;"
        for command in _table()
        if _positional(command)
    )
    commands = " ".join(_quoted(f"{name}:{c.summary}") for name, c in COMMANDS.items())
    return f"""\
#compdef onnxgrad
# completion of onnxgrad for zsh, made by `onnxgrad completion zsh`
_onnxgrad() {{
    local command="" previous="${{words[CURRENT-1]}}" i
    local -a said
    for ((i = 2; i < CURRENT; i++)); do
        if [[ "${{words[i]}}" != -* ]]; then command="${{words[i]}}"; break; fi
    done
    if [[ "$PREFIX" == --*=* ]]; then
        previous="${{PREFIX%%=*}}"
        compset -P '--*='
    fi
    case "$command $previous" in
{values}
    esac
    if [[ -z "$command" ]]; then
        said=({commands})
        _describe command said
        return
    fi
    if [[ "$PREFIX" == -* ]]; then
        case "$command" in
{options}
        esac
        _describe -o option said
        return
    fi
    case "$command" in
{places}
    esac
    _files
}}
if [[ "$funcstack[1]" == _onnxgrad ]]; then _onnxgrad "$@"; else compdef _onnxgrad onnxgrad; fi
"""


def _zsh_value(one: _Argument) -> str:
    if not one.words:
        return "_files" if one.files else "_message value"
    lists = "compset -P '*,'; " if "--passes" in one.names else ""
    return f"{lists}compadd -- {' '.join(one.words)}"


def fish() -> str:
    """Returns the script for fish 3 and later."""
    lines = ["# completion of onnxgrad for fish, made by `onnxgrad completion fish`"]
    start = "complete -c onnxgrad -n"
    for command, (what, arguments) in _table().items():
        lines.append(f"{start} __fish_use_subcommand -f -a {command} -d {_fish(what)}")
        here = f"{start} '__fish_seen_subcommand_from {command}'"
        if words := _positional(command):
            lines.append(f"{here} -f -a {_fish(' '.join(words))}")
        for one in arguments:
            names = " ".join(f"-l {n[2:]}" if n[:2] == "--" else f"-s {n[1:]}" for n in one.names)
            if names:
                lines.append(f"{here} {names}{_fish_value(one)} -d {_fish(one.what)}")
    return "\n".join(lines) + "\n"


def _fish_value(one: _Argument) -> str:
    if one.words:
        return f" -x -a {_fish(' '.join(one.words))}"
    return "" if not one.takes else " -r" if one.files else " -x"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def show(shell: str) -> None:
    """Prints the script for a shell."""
    print(SHELLS[shell](), end="")
