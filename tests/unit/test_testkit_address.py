"""A new process finds the app that this one holds, or says why it cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bellwire_consumer.app import App
from bellwire_schema.errors import ConfigError
from bellwire_testkit.address import AppAddress

MODULE = "from bellwire_consumer.app import App\napp = App('elsewhere')\nno_app = 3\n"
here = App[None]("here")


@pytest.fixture
def module_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "testkit_elsewhere.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop("testkit_elsewhere", None)


def test_found_by_its_name() -> None:
    address = AppAddress.of(here)
    assert (address.module, address.attribute) == (__name__, "here")
    assert address.load() is here


def test_loaded_from_its_file_where_no_import_finds_it(module_file: Path) -> None:
    address = AppAddress("testkit_elsewhere", "app", str(module_file))
    assert address.load().name == "elsewhere"


def test_what_is_no_app_is_refused(module_file: Path) -> None:
    with pytest.raises(ConfigError, match="testkit_elsewhere:no_app is no App"):
        AppAddress("testkit_elsewhere", "no_app", str(module_file)).load()


@pytest.mark.parametrize("module", ["testkit_nowhere", "__main__"])
def test_a_module_that_is_nowhere(module: str) -> None:
    with pytest.raises((ConfigError, ModuleNotFoundError)):
        AppAddress(module, "app", None).load()


def test_an_app_inside_a_function_is_refused() -> None:
    hidden: App[Any] = App("hidden")
    with pytest.raises(ConfigError, match="not inside a function"):
        AppAddress.of(hidden)
