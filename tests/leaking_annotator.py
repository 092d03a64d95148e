"""An annotator that ends its process, with a message that holds all planted secrets."""

from __future__ import annotations

import json
import os
import sys

from bsmeta.annotate.annotator import Annotator, Columns, Row


class Ended(BaseException):
    """Ends the process, since only an `Exception` counts as a failure of the page."""


class Leaking(Annotator):
    """Prints the secrets, and ends its process."""

    name = "leaking"
    columns = ("metadata_leaking",)

    def annotate(self, row: Row) -> Columns:
        text = "\n".join(os.environ[name] for name in json.loads(os.environ["PLANTED"]))
        print(text, file=sys.stderr)
        raise Ended(text)
