"""Nothing of the data acts on the terminal, whichever way it is printed."""

from __future__ import annotations

import ast
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from bsmeta.cli import PROGRAMS
from bsmeta.core.terminal import Console, ScreenedStream, screen_output, write_data
from tests.conftest import REPOSITORY
from tests.terminal import find_sequences, run_in_terminal

EVIL = "\x1b]52;c;QUFB\x07\x1b[5;35mx\u202e"
SHOWN = "\\x1b]52;c;QUFB\\x07\\x1b[5;35mx\\u202e"
PROGRAM = f"""
import logging, sys, warnings
from bsmeta.core.process import run_and_report
from bsmeta.core.progress import show_progress_bar
from bsmeta.core.terminal import Console, write_data
EVIL = {EVIL!r}

def main():
    print(EVIL)
    print(EVIL, EVIL, file=sys.stderr)
    sys.stderr.writelines([EVIL])
    logging.warning("%s", EVIL)
    warnings.warn(EVIL)
    Console().print(EVIL)
    with show_progress_bar(f"[red]{{EVIL}}[/nothing]", 1) as show:
        show(0.5, f"[bold]{{EVIL}}")
        print(EVIL)
        print(EVIL, file=sys.stderr)
        Console().print(EVIL, style="bold", highlight=False)
        show(1.0)
    write_data(EVIL)
    raise ValueError(EVIL)

sys.exit(run_and_report(main))
"""


def test_output_to_a_terminal_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    code, received = run_in_terminal([str(tmp_path / "program.py")], tmp_path)
    assert code == 1
    assert find_sequences(received) == []
    assert "\x1b[5;35m" not in received
    assert "\x1b[1m\\x1b]52;c;QUFB" in received  # the style of the console, around the text
    assert received.count("\\x1b]52;c;QUFB") >= 12
    assert "[red]" in received  # no markup
    assert f"ValueError: {SHOWN}" in received


def test_messages_written_to_a_file_are_printable(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 1
    assert find_sequences(done.stderr.decode()) == []
    head, tail = done.stdout.decode().split(EVIL)  # the data alone are as they were
    assert find_sequences(head) == []
    assert tail == ""


def test_data_are_written_byte_for_byte_to_a_file(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    write_data("a\r\n\x1b[31m\udcff é")
    assert capfdbinary.readouterr().out == b"a\r\n\x1b[31m\xff \xc3\xa9"


def test_a_terminal_that_cannot_encode_a_text_does_not_end_the_program() -> None:
    program = (
        "import sys\n"
        "from bsmeta.core.process import run_and_report\n"
        "from bsmeta.core.terminal import Console\n"
        "def show(): print('é\\u2013'); Console().print('\\u2013é')\n"
        "sys.exit(run_and_report(show))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"\\xe9\\u2013\n\\u2013\\xe9\n"


def make_console(**settings: object) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=60, **settings), file


def test_a_console_prints_text_without_interpreting_markup() -> None:
    console, file = make_console()
    table = Table(title="[bold]t[/] :smile:", box=None)
    table.add_column(EVIL)
    table.add_row(Text(EVIL, "bold"))
    console.print(table)
    console.print("[/red] [link=https://evil.example]x[/link]", highlight=False)
    assert [line.strip() for line in file.getvalue().splitlines()] == [
        "[bold]t[/] :smile:",
        SHOWN,
        SHOWN.replace("\\x07", ""),  # which rich leaves out of a Text
        "[/red] [link=https://evil.example]x[/link]",
    ]


def test_only_styles_of_the_console_write_escape_sequences() -> None:
    console, file = make_console(force_terminal=True, color_system="standard")
    console.print(EVIL, style="red", highlight=False)
    assert file.getvalue() == f"\x1b[31m{SHOWN}\x1b[0m\n"


def test_progress_bars_of_libraries_are_drawn() -> None:
    file = io.StringIO()
    screen = ScreenedStream(file)
    for _ in tqdm(range(2), file=screen, desc=EVIL, mininterval=0, ncols=90):  # type: ignore[type-var]
        pass
    first, *lines = file.getvalue().split("\r")
    assert first == ""
    assert len(lines) >= 3
    assert all(line.startswith(SHOWN) for line in lines)


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (["\rdone"], "\rdone"),
        (["a", "\rb"], "a\\rb"),
        (["a\n", "\rb", "\rc", "d", "\re", "\n", "\rf"], "a\n\rb\rcd\\re\n\rf"),
        (["a\rb"], "a\\rb"),
        (["\r\n", "x\r\ny"], "\r\nx\r\ny"),
        (["", "\rx"], "\rx"),
    ],
)
def test_a_carriage_return_does_not_overwrite_other_lines(parts: list[str], shown: str) -> None:
    file = io.StringIO()
    ScreenedStream(file).writelines(parts)
    assert file.getvalue() == shown


def test_screening_ends_with_its_context(caplog: pytest.LogCaptureFixture) -> None:
    factory = logging.getLogRecordFactory()
    with screen_output():
        screen = sys.stdout
        with screen_output():
            assert sys.stdout is screen
        logging.getLogger("bsmeta").warning("%s", EVIL)
    assert not isinstance(sys.stdout, ScreenedStream)
    assert logging.getLogRecordFactory() is factory
    assert caplog.messages == [SHOWN]


# --- every way to the terminal ------------------------------------------------------------------

SCRIPTS = [REPOSITORY / target for target, _ in PROGRAMS.values() if target.endswith(".py")]
SOURCES = [
    *(REPOSITORY / "bsmeta").rglob("*.py"), *SCRIPTS, REPOSITORY / "experiments/hpsearch/results.py"
]  # fmt: skip


def test_only_one_module_opens_consoles() -> None:
    """rich's own consoles would print escape sequences of the data."""
    users = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
                names = {alias.name for alias in node.names}
                users += [path.name] * bool(names & {"Console", "Progress", "TextColumn", "Live"})
                users += [path.name] * ((node.module, *names) == ("rich", "print"))
            elif isinstance(node, ast.Import):
                users += [path.name for alias in node.names if alias.name.startswith("rich")]
            elif isinstance(node, ast.Attribute) and node.attr == "buffer":
                users += [path.name] * (ast.unparse(node.value) == "sys.stdout")
    assert {*users} == {"terminal.py"}


def test_every_entry_point_screens_its_output() -> None:
    screened = {"run_entry_point", "run_and_report"}
    starters = {"cli.py", "annotate.py", "quick.py", "__main__.py", "reference.py"}
    for path in SOURCES:
        if path.name in starters:
            continue  # they run one of the others, or print no data
        tree = ast.parse(path.read_text())
        mains = [
            node
            for node in tree.body
            if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        ]
        called = {
            ast.unparse(call.func)
            for node in mains
            for call in ast.walk(node)
            if isinstance(call, ast.Call)
        }
        assert not mains or called & screened, path
