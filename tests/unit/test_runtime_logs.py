"""What is written is a line per change of state, with ids as fields and no password in any of it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bellwire_runtime import logs
from bellwire_runtime.redact import redact


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("bellwire")
    before = (root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate)
    yield
    root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate = before
    structlog.reset_defaults()


def alone(**options: str) -> io.StringIO:
    """Set up in a process where nobody else did; pytest's own handlers would count as somebody."""
    logging.getLogger().handlers[:] = []
    out = io.StringIO()
    logs.configure(stream=out, **options)
    return out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:secret@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("amqps://u:se/cr:et@h/", "amqps://u:***@h/"),
        ("postgresql://u:p@ss@h/d", "postgresql://u:***@h/d"),
        ("connecting to postgresql://:secret@h/d failed", "connecting to postgresql://:***@h/d failed"),
        ("host=h password=secret user=u", "host=h password=*** user=u"),
        ("host=h password = 'se cr\\'et' user=u", "host=h password = *** user=u"),
        ("postgresql://h/d?password=secret&sslmode=require", "postgresql://h/d?password=***&sslmode=require"),
        ("nothing to hide: http://h/path", "nothing to hide: http://h/path"),
    ],
)
def test_passwords_are_taken_out_of_texts(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_json_lines_carry_fields_and_no_secret_whoever_logs() -> None:
    out = alone(log_format="auto")
    structlog.get_logger("bellwire.relay").info("serving", kinds=3, url="postgresql://u:s3ntinel@h/d")
    try:
        raise ValueError("cannot reach postgresql://u:s3ntinel@h/d")
    except ValueError:
        logging.getLogger("somebody.else").exception("failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["event"], first["kinds"], first["level"]) == ("serving", 3, "info")
    assert "ValueError" in second["exception"]
    assert "s3ntinel" not in out.getvalue()


def test_tracebacks_show_no_locals() -> None:
    out = alone(log_format="json")
    payload = "sentinel".upper()
    try:
        raise ValueError(f"a payload of {len(payload)} characters")
    except ValueError:
        structlog.get_logger("bellwire.relay").exception("failed")
    assert "a payload of 8 characters" in out.getvalue()
    assert payload not in out.getvalue()


def test_debug_is_for_our_own_lines() -> None:
    out = alone(log_format="console", log_level="debug")
    logging.getLogger("chatty.library").info("one a job")
    structlog.get_logger("bellwire.relay").debug("cycle", admitted=1)
    assert "one a job" not in out.getvalue()
    assert "event='cycle'" in out.getvalue()


def test_an_applications_own_logging_stays() -> None:
    theirs, out = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(theirs)
    logging.getLogger().addHandler(handler)
    logs.configure(log_format="json", stream=out)
    logging.getLogger("shop").warning("theirs")
    structlog.get_logger("bellwire.consumer").info("ours")
    assert theirs.getvalue() == "theirs\n"
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["ours"]
