"""The settings page lists every setting of both daemons with its default, and nothing else."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from bellwire_consumer.settings import ConsumerSettings
from bellwire_relay.settings import RelaySettings
from bellwire_runtime.exits import Exit
from bellwire_runtime.settings import DaemonSettings, load

PAGE = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()
ROWS = dict(re.findall(r"^\| `BELLWIRE_(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
# Where the page says in words what the code derives.
IN_WORDS = {"LISTEN_URL": "the database's", "CONSUMER_DRAIN": "the grace less 5 s"}


def fields(settings: type[BaseSettings]) -> set[str]:
    return {name.upper() for name in settings.model_fields}


def test_the_page_lists_exactly_the_settings() -> None:
    assert set(ROWS) == fields(DaemonSettings) | fields(RelaySettings) | fields(ConsumerSettings)


@pytest.mark.parametrize("settings", [RelaySettings, ConsumerSettings])
def test_the_page_names_the_defaults(settings: type[BaseSettings]) -> None:
    made = load(settings, database_url="postgresql://u@h/d")
    for name, field in settings.model_fields.items():
        shown = ROWS[name.upper()].strip().strip("`")
        default = getattr(made, name)
        if name == "database_url" or name.upper() in IN_WORDS:
            assert shown == IN_WORDS.get(name.upper(), "none")
        elif isinstance(default, timedelta):
            other = settings.model_validate({"database_url": "postgresql://u@h/d", name: shown})
            assert getattr(other, name) == default, name
        elif isinstance(default, bool):
            assert shown == str(default).lower(), name
        else:
            assert shown == ("none" if default is None else str(default)), (name, field.default)


def test_the_page_lists_the_exit_codes() -> None:
    codes = re.findall(r"^\| (\d+) \| ", PAGE, re.MULTILINE)
    assert codes == [str(int(code)) for code in Exit]
