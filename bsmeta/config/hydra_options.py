"""The parser of Hydra's own options, such as `--config-name` and `--multirun`."""

from __future__ import annotations

import argparse
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from bsmeta.core.errors import ConfigurationError


class OptionParser(argparse.ArgumentParser):
    """A parser that raises its errors instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"the command line: {message}; see --help")


def make_option_parser() -> OptionParser:
    """Returns the parser of Hydra's own options."""
    return OptionParser(parents=[get_args_parser()], add_help=False, allow_abbrev=False)
