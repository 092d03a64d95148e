"""Makes the shipped raw pages from a folder of raw pages.

    python examples/make_rawpages.py FOLDER

writes `examples/rawpages/*.jsonl.gz`: of each site some pages of a moderate size, dealt to three
files in turn. The same source gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
FILES = 3
PAGES_PER_SITE = 14
PAGE_CHARACTERS = range(6_000, 26_000)


def main(arguments: list[str]) -> int:
    """Makes the files; returns the exit code."""
    sources = sorted(Path(arguments[0]).glob("*.jsonl.gz")) if len(arguments) == 1 else []
    if not sources:
        print("usage: make_rawpages.py FOLDER   (of *.jsonl.gz)", file=sys.stderr)
        return 2
    chosen: defaultdict[str, list[bytes]] = defaultdict(list)
    for source in sources:
        with gzip.open(source) as file:
            for line in file:
                page = json.loads(line)
                site = chosen[urlsplit(page["url"]).netloc]
                if len(site) < PAGES_PER_SITE and len(page["html"]) in PAGE_CHARACTERS:
                    site.append(line)
    pages = [line for turn in zip(*chosen.values(), strict=False) for line in turn]
    (HERE / "rawpages").mkdir(exist_ok=True)
    for number in range(FILES):
        buffer = io.BytesIO()
        with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as file:
            file.writelines(pages[number::FILES])
        path = HERE / "rawpages" / f"raw-{number:03d}.jsonl.gz"
        path.write_bytes(buffer.getvalue())
        print(f"{path.name}: {len(pages[number::FILES])} pages, {len(buffer.getvalue()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
