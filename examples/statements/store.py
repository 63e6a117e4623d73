"""Artifacts in a folder: a key holds one file for ever, whole, or nothing at all.

A file is written under a temporary name, made durable, and then linked to its key. `link` is the conditional
create of a file system: it is atomic and refuses a name that exists, so two attempts that both finish cannot
overwrite each other, and whoever opens a key reads all of it. Other bytes under a key are an error, never an
overwrite: they mean that an input changed, or that the renderer did.

Temporary names carry the attempt's number. It only ever rises for a job, so what bears a lower number was
left by an attempt that no longer owns it, and may go.
"""

import contextlib
import hashlib
import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_KEY = re.compile(r"statements/[1-9][0-9]{0,18}/[0-9]{4}-[0-9]{2}/v[1-9][0-9]{0,4}\.pdf")
_TEMPORARY = ".temporary"
_CHUNK = 1 << 20


class ArtifactConflict(Exception):
    """Other bytes stand under the key already; `found` and `offered` are the two checksums."""

    def __init__(self, key: str, *, found: str, offered: str) -> None:
        super().__init__(f"{key} holds a file with SHA-256 {found}, not the {offered} offered")
        self.key = key
        self.found = found
        self.offered = offered


class TemporaryGone(Exception):
    """A later attempt has cleared our temporary file away: this attempt lost its lease some time ago."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Promoted:
    """What stands under the key now; `reused` where an earlier attempt had put the same bytes there."""

    key: str
    sha256: str
    size: int
    reused: bool


def statement_key(*, account_id: int, period: str, version: int) -> str:
    """The one key of a statement: nothing about it depends on a job, an attempt or a time."""
    return _checked(f"statements/{account_id}/{period}/v{version}.pdf")


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no statement's key")
    return key


class ArtifactStore:
    """The folder. Calls block on the disk: an event loop hands them to a thread. Needs hard links."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, key: str) -> Path:
        """Where the file of `key` stands, or would stand."""
        return self._root / _checked(key)

    def checksum(self, key: str) -> str | None:
        """SHA-256 of what stands under `key`, None if nothing does."""
        try:
            return _sha256(self.path(key))
        except FileNotFoundError:
            return None

    def write_temporary(self, key: str, content: bytes, *, attempt: int) -> Path:
        """Write `content` beside the keys, durably, under a name nobody else uses."""
        folder = self._root / _TEMPORARY
        _make_folder(folder)
        path = folder / f"{_flat(key)}.{attempt}.{secrets.token_hex(8)}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)  # a full disk leaves no half file behind
            raise
        return path

    def promote(self, temporary: Path, key: str) -> Promoted:
        """Put the temporary file under `key`, or find the same bytes there; the temporary name is gone then.

        Returns only when the key would survive a power cut. Raises `ArtifactConflict` if other bytes stand
        there, `TemporaryGone` if a later attempt has taken `temporary` away.
        """
        target = self.path(key)
        _make_folder(target.parent)
        try:
            offered = _sha256(temporary)
            try:
                os.link(temporary, target)
                reused = False
            except FileExistsError:
                reused = True
        except FileNotFoundError:
            raise TemporaryGone(f"{temporary.name} was cleared away by a later attempt") from None
        temporary.unlink(missing_ok=True)
        found = _sha256(target)
        if found != offered:
            raise ArtifactConflict(key, found=found, offered=offered)
        _sync_folder(target.parent)
        return Promoted(key=key, sha256=found, size=target.stat().st_size, reused=reused)

    def clear_stale(self, key: str, *, below: int) -> int:
        """Remove what attempts with a number lower than `below` left unfinished; answers how many files."""
        mine = re.compile(re.escape(_flat(key)) + r"\.([0-9]+)\.[0-9a-f]+")
        removed = 0
        for path in self._temporaries():
            found = mine.fullmatch(path.name)
            if found and int(found[1]) < below:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def sweep(self, *, older_than: timedelta) -> int:
        """Remove temporary files that no attempt can still need; answers how many.

        For those whose job never ran again. `older_than` must exceed the longest an attempt may take.
        """
        horizon = time.time() - older_than.total_seconds()
        removed = 0
        for path in self._temporaries():
            with contextlib.suppress(FileNotFoundError):  # its attempt has just finished
                if path.stat().st_mtime < horizon:
                    path.unlink()
                    removed += 1
        return removed

    def _temporaries(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return list((self._root / _TEMPORARY).iterdir())
        return []


def _flat(key: str) -> str:
    """A key as one file name. Keys hold no `+`, so two keys never share one."""
    return _checked(key).replace("/", "+")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably: a file in a folder that a power cut forgot is lost too."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
