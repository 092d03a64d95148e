"""Files and folders: atomic writes, hashes, safe names, lock files, and errors of a full disk."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import unicodedata
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import xxhash

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.parsing import has_surrogates
from bsmeta.core.progress import hold_lock, report_progress

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "resources"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
"""The folder that contains `hydra_configs/`, `deepspeed_configs/`, `experiments/`, `examples/`: the
top level of a checkout (also of one installed with `pip install -e`), or `bsmeta/resources/` in a
wheel, where `setup.py` puts these folders."""

CONFIG_FOLDER = ROOT / "hydra_configs"

_BLOCK_BYTES = 1 << 20  # read at a time

_MAX_PART_BYTES = 255  # of a name between two slashes; the limit of ext4, XFS, APFS and NTFS
_MAX_SHOWN_CHARS = 100  # of a name that is too long
_DRIVE = re.compile(r"[A-Za-z]:")

SHARED_MEMORY = Path("/dev/shm")
"""File system in shared memory, through which torch's loader processes pass batches."""

MIN_FREE_BYTES = 1 << 20
"""Number of free bytes below which a file system is reported as full."""

FULL_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full disk, an exhausted quota, and a file of the maximum size."""

# Parts of messages, in lower case: the writers of torch and safetensors do not keep the errno.
_FULL_DISK_MESSAGES = (
    "no space left",
    "quota exceeded",
    "file too large",
    "iostream error",
    "writing file",
)


class UnsafeNameError(DataError):
    """A name from outside the program cannot be the path of a file inside a folder.

    Attributes:
        reason: Why the name is refused, as a sentence about `it`.
    """

    def __init__(self, name: str, folder: Path, source: str, reason: str) -> None:
        super().__init__(
            f"{source}: the name {name!r} cannot be used for a file in {folder}: {reason}; "
            "expected a relative path, such as folder/file. Rename it there, or leave it out"
        )
        self.reason = reason


def join_inside(folder: Path, name: str, source: str, *, follow_links: bool = False) -> Path:
    """Joins a folder and the name of a file that comes from outside the program.

    Every name in a listing, an archive, a manifest or a journal is joined to a folder by this
    function, so that `../../.ssh/authorized_keys` cannot reach a file elsewhere.

    Args:
        name: Relative to the folder, with `/` between its parts.
        source: The file or URL that contains the name, for the message.
        follow_links: Whether symbolic links inside the folder may lead out of it; for reading only.
            In the cache of the Hub, every file of a model is such a link.

    Raises:
        UnsafeNameError: If the path is not inside the folder, or no file can have the name.
    """
    reason = find_name_fault(name)
    if reason is None and not follow_links and not is_inside(folder / name, folder):
        reason = f"a symbolic link leads out of {folder}"

    if reason is not None:
        raise UnsafeNameError(name, folder, source, reason)
    return folder / name


def find_name_fault(name: str) -> str | None:
    """Returns the reason why a name cannot be the relative path of a file; None if it can be.

    The rules of all operating systems apply, whichever one this process runs on.
    """
    if not name:
        return "it is empty"
    if name.startswith("/") or _DRIVE.match(name):
        return "it is an absolute path"
    if "\\" in name:
        return "it has a backslash"

    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"it has the part {part!r}"
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in part):
            return "it has a control character or half a surrogate pair"
        if len(part.encode()) > _MAX_PART_BYTES:
            return f"a part of it is longer than {_MAX_PART_BYTES} bytes"
    return None


def locate_user_cache() -> Path:
    """Returns the path of the user's cache folder, which need not exist.

    It is `$BSMETA_CACHE`, or else `bsmeta` in the cache folder of the XDG Base Directory
    Specification.
    """
    folder = os.environ.get("BSMETA_CACHE")
    if folder:
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bsmeta"


def refuse_undecodable(paths: Iterable[object], key: str) -> None:
    """Refuses paths that are not in UTF-8, because they cannot be written to records and logs.

    Args:
        key: The configuration key that names or matches the paths, for the message.

    Raises:
        DataError: Naming the first such path.
    """
    for path in map(str, paths):
        if has_surrogates(path):
            raise DataError(
                f"{key}: {path} has a name that is not in UTF-8; expected one that is: rename it "
                "(convmv does so for whole folders)"
            )


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is inside a folder once all symbolic links are followed."""
    # Path.resolve would raise for a link that leads to itself.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def is_special_file(path: str | Path) -> bool:
    """Whether a path leads to a pipe, a socket or a device.

    It is False for folders, missing files and broken links, because opening them raises an error.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: for a name with a null byte
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def refuse_special_file(path: str | Path) -> None:
    """Refuses a pipe, a socket and a device: they may block forever, and cannot be read twice.

    Raises:
        DataError: If the path leads to one of them.
    """
    if is_special_file(path):
        raise DataError(
            f"{path} is a pipe, a socket or a device; expected a file, which can be read more than "
            "once: write its content to one, and name that"
        )


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path; the file written there replaces `path` when the block ends.

    Several processes may replace the same file at the same time. The file gets the permissions of
    the umask, because others may share the folder, whereas `tempfile` would make it private.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def build_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path; the file or folder built there is renamed to `path` afterwards.

    Only one process at a time may build the same path. An unfinished result, left by an error or by
    a killed process, is deleted.
    """
    unfinished = path.with_name(f"{path.name}.part")
    delete_path(unfinished)
    try:
        yield unfinished
        os.rename(unfinished, path)
    finally:
        delete_path(unfinished)


def delete_path(path: Path) -> None:
    """Deletes a file, a symbolic link or a whole folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically, in UTF-8."""
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically, on one line."""
    write_text(path, json.dumps(value, ensure_ascii=False) + "\n")


def sync_to_disk(path: Path) -> None:
    """Flushes a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_file(path: str | Path) -> str:
    """Returns the xxh3 (64 bits) of a file's content, in hexadecimal.

    Raises:
        DataError: If it is a pipe, a socket or a device.
    """
    refuse_special_file(path)
    content_hash = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            content_hash.update(block)
            report_progress()
    return content_hash.hexdigest()


def measure_free_bytes(path: Path) -> int:
    """Returns the number of free bytes on the disk of a path, which need not exist yet."""
    ancestors = (path, *path.absolute().parents)
    folder = next(ancestor for ancestor in ancestors if ancestor.is_dir())
    return shutil.disk_usage(folder).free


def describe_write_obstacle(path: Path) -> str | None:
    """Describes the path that prevents a folder from being created or written; creates nothing.

    A folder on a read-only file system is such a path even for root.

    Returns:
        A noun phrase, such as `below /data, which is a file`; None if nothing prevents it.
    """
    path = path.absolute()
    existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    location = "" if existing == path else f"below {existing}, which is "

    try:
        is_folder = stat.S_ISDIR(existing.stat().st_mode)
    except OSError as error:  # a dangling or circular link
        return f"{location}a link that leads nowhere ({error.strerror})"
    if not is_folder:
        return f"{location}a file"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{location}a folder that you may not write to"
    return None


def refuse_unwritable_folder(folder: Path, key: str) -> None:
    """Refuses an output folder that cannot be created or written, before any long work.

    Args:
        key: The configuration key that names the folder.

    Raises:
        ConfigurationError: Naming the folder, and what is in the way.
    """
    obstacle = describe_write_obstacle(folder)
    if obstacle is not None:
        raise ConfigurationError(
            f"{key}: {folder} is {obstacle}; expected a writable folder, or a new name: "
            f"{key}=FOLDER",
            [key],
        )


def is_full_disk_error(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, means that the disk is full."""
    for cause in iterate_causes(error):
        if getattr(cause, "errno", None) in FULL_DISK_ERRNOS:
            return True

        message = str(cause).lower()
        if any(text in message for text in _FULL_DISK_MESSAGES):
            return True
    return False


def explain_full_disk(error: BaseException) -> DataError | None:
    """Explains an error that a full disk has caused; returns None for other errors.

    A failed write does not name its file, so the message lists all file systems that are full.
    """
    if not is_full_disk_error(error):
        return None

    mounts = sorted({partition.mountpoint for partition in psutil.disk_partitions(all=True)})
    full_mounts = [mount for mount in mounts if _is_full(mount)]
    mount_list = f" ({', '.join(full_mounts)})" if full_mounts else ""
    return DataError(
        f"no room is left on the disk{mount_list}: {error}. Free some space there, or write to "
        "another folder, and repeat the command"
    )


def explain_long_name(error: BaseException) -> DataError | None:
    """Explains the error for a name that is too long; returns None for other errors."""
    if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:
        return None

    name = str(error.filename)
    return DataError(
        f"{name[:_MAX_SHOWN_CHARS]}… ({len(name):,} characters) is too long for the name of a "
        "file; expected a path whose parts have at most 255 bytes each"
    )


def explain_link_loop(error: BaseException) -> DataError | None:
    """Explains the error for symbolic links that lead to themselves; returns None for others."""
    # Before Python 3.13, `Path.resolve` raises a RuntimeError without an errno.
    is_loop = isinstance(error, OSError) and error.errno == errno.ELOOP
    if not is_loop and not str(error).startswith("Symlink loop from "):
        return None
    return DataError(
        f"{error}: symbolic links lead to each other, and to no file; expected the path of a file "
        "or a folder. Delete the link, or name another path"
    )


def explain_deleted_folder(error: BaseException) -> DataError | None:
    """Explains the error of a process whose working folder is gone; returns None for others."""
    if not any(isinstance(cause, FileNotFoundError) for cause in iterate_causes(error)):
        return None
    try:
        os.getcwd()
    except FileNotFoundError:
        return DataError(
            "the working folder of this process has been deleted; change to a folder that exists "
            "(cd), and repeat the command"
        )
    return None


def _is_full(mount: str) -> bool:
    """Whether a file system is writable and has fewer than `MIN_FREE_BYTES`.

    Args:
        mount: The folder at which it is mounted.
    """
    try:
        status = os.statvfs(mount)
    except OSError:
        return False

    is_writable = not status.f_flag & os.ST_RDONLY
    free_bytes = status.f_bavail * status.f_frsize
    return is_writable and status.f_blocks > 0 and free_bytes < MIN_FREE_BYTES


def iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, its cause, the cause's cause, and so on."""
    seen: set[int] = set()  # a chain of causes may be cyclic
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def hold_write_lock(path: Path, work: str, lock: Path | None = None) -> Iterator[None]:
    """Holds a lock during the block, in which only one process at a time writes a file or folder.

    Args:
        work: The work done under the lock, as a noun phrase; see `hold_lock`.
        lock: The lock file, whose folder is created if it is missing; None: `{path}.lock`.

    Raises:
        DataError: If the file or folder cannot be written, for example because the disk is full.
            Errors about another file, such as a source that cannot be read, are not changed.
    """
    lock = lock or path.with_name(f"{path.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(lock, work):
            yield
    except OSError as error:
        if isinstance(error.filename, str):
            # The error is about the path if it names a file in the same folder, or a parent folder.
            faulty_path = Path(error.filename)
            if not is_inside(faulty_path, path.parent) and not is_inside(path, faulty_path):
                raise
        free = format_bytes(measure_free_bytes(path))
        raise DataError(
            f"{path} cannot be written: {error} ({free} are free there); free some space, or name "
            "another folder"
        ) from error


def format_bytes(count: int) -> str:
    """Formats a number of bytes for display: `410 kB`, `17.0 MB`, `1.50 GB`."""
    if count < 10**7:
        return f"{count / 1e3:,.0f} kB"
    if count < 10**9:
        return f"{count / 1e6:,.1f} MB"
    return f"{count / 1e9:,.2f} GB"
