"""A key holds one file for ever: whole, never overwritten, whatever two attempts do to it."""

import hashlib
import multiprocessing
import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.statements.store import ArtifactConflict, ArtifactStore, TemporaryGone, statement_key

KEY = statement_key(account_id=91, period="2026-05", version=3)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def temporaries(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".temporary").iterdir())


def test_the_key_names_account_period_and_format_only() -> None:
    assert KEY == "statements/91/2026-05/v3.pdf"


@pytest.mark.parametrize(
    ("account_id", "period", "version"),
    [(0, "2026-05", 3), (-1, "2026-05", 3), (91, "../../etc", 3), (91, "2026-05/..", 3), (91, "2026-05", 0)],
)
def test_what_is_no_key_never_becomes_a_path(account_id: int, period: str, version: int) -> None:
    with pytest.raises(ValueError, match="no statement's key"):
        statement_key(account_id=account_id, period=period, version=version)


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "statements/91/2026-05/v3.pdf/../../../../x", ""])
def test_the_store_checks_keys_itself(store: ArtifactStore, key: str) -> None:
    with pytest.raises(ValueError, match="no statement's key"):
        store.path(key)


def test_nothing_stands_under_the_key_before_promotion(store: ArtifactStore, tmp_path: Path) -> None:
    temporary = store.write_temporary(KEY, b"pdf", attempt=1)
    assert store.checksum(KEY) is None
    done = store.promote(temporary, KEY)
    assert done.sha256 == store.checksum(KEY) == hashlib.sha256(b"pdf").hexdigest()
    assert (done.size, done.reused) == (3, False)
    assert store.path(KEY).read_bytes() == b"pdf"
    assert temporaries(tmp_path) == []
    assert not stat.S_IMODE(store.path(KEY).stat().st_mode) & 0o222  # nobody writes to it by mistake


def test_the_same_bytes_again_are_reused(store: ArtifactStore, tmp_path: Path) -> None:
    store.promote(store.write_temporary(KEY, b"pdf", attempt=1), KEY)
    before = store.path(KEY).stat()
    done = store.promote(store.write_temporary(KEY, b"pdf", attempt=2), KEY)
    assert done.reused
    assert store.path(KEY).stat().st_ino == before.st_ino
    assert temporaries(tmp_path) == []


def test_other_bytes_under_the_key_are_an_error_and_change_nothing(
    store: ArtifactStore, tmp_path: Path
) -> None:
    store.promote(store.write_temporary(KEY, b"first", attempt=1), KEY)
    with pytest.raises(ArtifactConflict) as caught:
        store.promote(store.write_temporary(KEY, b"other", attempt=2), KEY)
    assert caught.value.found == hashlib.sha256(b"first").hexdigest()
    assert caught.value.offered == hashlib.sha256(b"other").hexdigest()
    assert caught.value.found in str(caught.value)
    assert caught.value.offered in str(caught.value)
    assert store.path(KEY).read_bytes() == b"first"
    assert temporaries(tmp_path) == []


def test_a_damaged_file_under_the_key_is_noticed(store: ArtifactStore) -> None:
    store.promote(store.write_temporary(KEY, b"whole", attempt=1), KEY)
    store.path(KEY).chmod(0o644)
    store.path(KEY).write_bytes(b"who")
    with pytest.raises(ArtifactConflict):
        store.promote(store.write_temporary(KEY, b"whole", attempt=2), KEY)


def test_a_later_attempt_clears_what_earlier_ones_left_of_this_key_only(
    store: ArtifactStore, tmp_path: Path
) -> None:
    other = statement_key(account_id=9, period="2026-05", version=3)
    store.write_temporary(KEY, b"one", attempt=1)
    store.write_temporary(KEY, b"two", attempt=2)
    third = store.write_temporary(KEY, b"three", attempt=3)
    tenth = store.write_temporary(KEY, b"ten", attempt=10)
    foreign = store.write_temporary(other, b"other", attempt=1)
    (tmp_path / ".temporary" / "stray").touch()
    assert store.clear_stale(KEY, below=3) == 2
    assert temporaries(tmp_path) == sorted([third.name, tenth.name, foreign.name, "stray"])


def test_a_stale_attempt_whose_file_was_cleared_cannot_promote(store: ArtifactStore) -> None:
    stale = store.write_temporary(KEY, b"pdf", attempt=1)
    store.clear_stale(KEY, below=2)
    with pytest.raises(TemporaryGone):
        store.promote(stale, KEY)
    assert store.checksum(KEY) is None


def test_sweeping_takes_by_age(store: ArtifactStore, tmp_path: Path) -> None:
    old = store.write_temporary(KEY, b"old", attempt=1)
    young = store.write_temporary(KEY, b"young", attempt=1)
    yesterday = old.stat().st_mtime - 86_400
    os.utime(old, (yesterday, yesterday))
    assert store.sweep(older_than=timedelta(hours=1)) == 1
    assert temporaries(tmp_path) == [young.name]


def test_an_empty_store_has_nothing_to_clear(store: ArtifactStore) -> None:
    assert store.clear_stale(KEY, below=9) == 0
    assert store.sweep(older_than=timedelta(0)) == 0


def test_a_full_disk_leaves_no_half_file(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / ".temporary").mkdir()
    with pytest.raises(OSError, match="No space left"):
        store.write_temporary(KEY, b"pdf", attempt=1)
    assert temporaries(tmp_path) == []


@given(contents=st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_first_promotion_wins_for_ever(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    root = tmp_path_factory.mktemp("store")
    store = ArtifactStore(root)
    for number, content in enumerate(contents, start=1):
        temporary = store.write_temporary(KEY, content, attempt=number)
        if content == contents[0]:
            assert store.promote(temporary, KEY).reused == (number > 1)
        else:
            with pytest.raises(ArtifactConflict):
                store.promote(temporary, KEY)
        assert store.path(KEY).read_bytes() == contents[0]
    assert temporaries(root) == []


def test_of_attempts_that_promote_at_once_one_creates_and_the_others_reuse(store: ArtifactStore) -> None:
    for account in range(1, 31):
        key = statement_key(account_id=account, period="2026-05", version=3)
        written = [store.write_temporary(key, b"same", attempt=number) for number in range(1, 5)]
        start = Barrier(len(written))

        def promote(path: Path, key: str = key, start: Barrier = start) -> bool:
            start.wait()
            return store.promote(path, key).reused

        with ThreadPoolExecutor(max_workers=len(written)) as pool:
            reused = list(pool.map(promote, written))
        assert sorted(reused) == [False, True, True, True]


def write_and_wait(root: Path, written: Event) -> None:
    ArtifactStore(root).write_temporary(KEY, b"pdf", attempt=1)
    written.set()
    signal.pause()


def test_a_process_killed_between_writing_and_promoting_leaves_only_a_temporary_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    written = context.Event()
    process = context.Process(target=write_and_wait, args=(tmp_path, written))
    process.start()
    assert written.wait(30)
    process.kill()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    store = ArtifactStore(tmp_path)
    assert store.checksum(KEY) is None
    assert store.clear_stale(KEY, below=2) == 1
    assert not store.promote(store.write_temporary(KEY, b"pdf", attempt=2), KEY).reused
