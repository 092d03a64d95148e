"""The parser of Hydra's own options, such as `--config-name` and `--multirun`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from bsmeta.core.errors import ConfigurationError

_CHECK = "_check_help"  # of argparse, from Python 3.14 on


class OptionParser(argparse.ArgumentParser):
    """A parser that raises its errors instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"the command line: {message}; see --help")


def make_option_parser() -> OptionParser:
    """Returns the parser of Hydra's own options."""
    with accept_any_help_text():
        return OptionParser(parents=[get_args_parser()], add_help=False, allow_abbrev=False)


@contextmanager
def accept_any_help_text() -> Iterator[None]:
    """Makes argparse accept options whose help is not a string, as it did before Python 3.14.

    Since then, it formats each help text when the option is added. That of Hydra's
    `--shell-completion` (up to 1.3.8 at least) is an object that becomes a text when it is shown.
    """
    is_outermost = _CHECK not in vars(argparse.ArgumentParser)
    setattr(argparse.ArgumentParser, _CHECK, _accept)
    try:
        yield
    finally:
        if is_outermost:
            delattr(argparse.ArgumentParser, _CHECK)


def _accept(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    """Does nothing, in place of a check."""
