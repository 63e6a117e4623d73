"""The errors page and the error tree agree: no code without a paragraph, no paragraph without a code."""

import pickle
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from bellwire_schema import errors
from bellwire_schema.errors import BellwireError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def tree(root: type[BellwireError]) -> Iterator[type[BellwireError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


CLASSES = sorted(
    {cls for cls in tree(BellwireError) if cls.__module__ == errors.__name__}, key=lambda cls: cls.__name__
)
SECTIONS = dict(re.findall(r"^### `([a-z_]+)`\n(.+?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def test_every_code_has_a_paragraph_and_every_paragraph_a_code() -> None:
    assert set(SECTIONS) == {cls.code for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_class_is_named_in_the_paragraph_of_its_code(cls: type[BellwireError]) -> None:
    assert f"`{cls.__name__}`" in SECTIONS[cls.code]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_class_stands_in_the_tree_at_the_top_of_the_module(cls: type[BellwireError]) -> None:
    assert errors.__doc__ is not None
    assert re.search(rf"^\s*[├└│─ ]*{cls.__name__}\b", errors.__doc__, re.MULTILINE)


@pytest.mark.parametrize(
    "error",
    [
        errors.KeyConflict(UUID(int=7), ["period"], ordinal=3),
        errors.OverCapacity(50_000, timedelta(minutes=4)),
        errors.PayloadInvalid("a.b", "is NaN", kind="render"),
        errors.PayloadTooLarge(70_000, 65_536, field="blob"),
        errors.MigrationBehind(None, "0002"),
        errors.ThrottledError("mail_429", retry_after=timedelta(seconds=3), scope="tenant"),
        errors.Snooze(timedelta(minutes=5), code="ledger_open"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_a_process_boundary(error: BellwireError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("code", ["Mail down", "", "x" * 64, "mail-down"])
def test_a_code_is_a_name_and_not_a_sentence(code: str) -> None:
    with pytest.raises(errors.ConfigError, match="must match"):
        errors.RetryableError(code)


def test_a_throttle_and_a_snooze_refuse_times_that_cannot_be() -> None:
    with pytest.raises(errors.ConfigError, match="retry_after"):
        errors.ThrottledError("mail_429", retry_after=timedelta(seconds=-1))
    with pytest.raises(errors.ConfigError, match="delay"):
        errors.Snooze(timedelta(0))
