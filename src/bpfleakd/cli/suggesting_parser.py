"""A command-line parser that suggests similar commands and options."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import Any


class SuggestingParser(argparse.ArgumentParser):
    """Its commands have parsers of this class, too: each refuses what it does not know."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            meant = _meant(str(value), action.choices) or f"; the commands are {', '.join(action.choices)}"
            raise argparse.ArgumentError(None, f"there is no command {str(value)!r}{meant}")
        super()._check_value(action, value)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(rest)
        return parsed, rest

    def _refuse(self, rest: list[str]) -> None:
        for word in rest:
            option = word.partition("=")[0]
            if option.startswith("-"):
                self.error(f"there is no option {option}{_meant(option, self._option_string_actions)}")
        self.error(f"too many arguments: {' '.join(rest)}")


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]}?" if close else ""
