"""Where another process finds the same app: a child that is to be killed imports it, it does not inherit it.

A fork would carry half of this process along (its threads' locks, its sockets, its event loop) and show a
crash that no production process can have. So the app must stand in a module under a name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from bellwire_consumer.app import App
from bellwire_schema.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AppAddress:
    """`module:attribute`, and the module's file for modules that were loaded from one and not imported."""

    module: str
    attribute: str
    file: str | None

    @classmethod
    def of(cls, app: App[Any]) -> AppAddress:
        """Raises `ConfigError` where the app stands in no module."""
        at_home = {handler.function.__module__ for handler, _ in app.handlers().values()}
        found = [
            (name not in at_home, name == "__main__", name, attribute, module)
            for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType)
            for attribute, value in list(vars(module).items())
            if value is app
        ]
        if not found:
            raise ConfigError(
                f"kill_at: a new process cannot import app {app.name!r}; assign it to a name in a module, "
                "not inside a function"
            )
        *_, name, attribute, module = min(found, key=lambda candidate: candidate[:4])
        return cls(name, attribute, getattr(module, "__file__", None))

    def load(self) -> App[Any]:
        """Import the app in this process."""
        app = getattr(self._module(), self.attribute)
        if not isinstance(app, App):
            raise ConfigError(f"kill_at: {self.module}:{self.attribute} is no App in a new process")
        return app

    def _module(self) -> ModuleType:
        if self.module != "__main__":
            try:
                return importlib.import_module(self.module)
            except ModuleNotFoundError:
                if self.file is None:
                    raise
        if self.file is None:
            raise ConfigError(f"kill_at: module {self.module} has no file to load it from")
        name = "bellwire_testkit_main" if self.module == "__main__" else self.module
        spec = importlib.util.spec_from_file_location(name, self.file)
        if spec is None or spec.loader is None:
            raise ConfigError(f"kill_at: {self.file} cannot be loaded as a module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
