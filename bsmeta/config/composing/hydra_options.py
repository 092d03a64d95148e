"""The parser of Hydra's own options, such as `--config-name` and `--multirun`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from bsmeta.core.errors import ConfigurationError

_CHECK = "_check_help"
"""The method of argparse's parser that checks the help of an option; from Python 3.14 on."""


class OptionParser(argparse.ArgumentParser):
    """A parser that raises its errors instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raises a `ConfigurationError`."""
        raise ConfigurationError(f"the command line: {message}; see --help")


def make_option_parser() -> OptionParser:
    """Returns the parser of Hydra's own options."""
    with accept_any_help_text():
        return OptionParser(parents=[get_args_parser()], add_help=False, allow_abbrev=False)


@contextmanager
def accept_any_help_text() -> Iterator[None]:
    """Makes argparse accept options whose help is not a string, as it did before Python 3.14.

    Since 3.14, argparse formats each help text when the option is added. The help of Hydra's
    `--shell-completion` (at least up to Hydra 1.3.8) is an object that becomes a text only when it
    is shown.
    """
    is_outermost = _CHECK not in vars(argparse.ArgumentParser)
    setattr(argparse.ArgumentParser, _CHECK, _skip_check)
    try:
        yield
    finally:
        if is_outermost:
            delattr(argparse.ArgumentParser, _CHECK)


def _skip_check(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    """Replaces the check of an option's help, and does nothing."""
