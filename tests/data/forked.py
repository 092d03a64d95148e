"""Reads files in a forked process, as the loader processes do."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import open_file
from tests.waiting import STUCK_S


def read_in_fork(ref: FileRef) -> bytes:
    """Forks this process, and returns the content of a file as the child reads it."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_content, args=(ref, sender))
    process.start()
    sender.close()
    try:
        assert receiver.poll(STUCK_S), "the forked process hangs"
        return receiver.recv_bytes()
    finally:
        process.kill()
        process.join()


def _send_content(ref: FileRef, sender: Connection) -> None:
    with open_file(ref) as file:
        sender.send_bytes(file.read())
