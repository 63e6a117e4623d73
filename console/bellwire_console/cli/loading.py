"""Finds the App that `--app module:attribute` names, and says in one line why it cannot be had."""

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bellwire_console.cli.exits import Exit, Failure
from bellwire_runtime.redact import redact

if TYPE_CHECKING:
    from bellwire_consumer.app import App
    from bellwire_schema.policy import KindPolicy

__all__ = ["declared", "load_app"]


def load_app(path: str) -> "App[Any]":
    """The App at `module:attribute`; the working directory's modules are found, as by `python -m`."""
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute) or not all(p.isidentifier() for p in module_name.split(".")):
        raise Failure(Exit.USAGE, f"--app takes module:attribute, such as shop.work:app, not {path!r}")
    from bellwire_consumer.app import App
    from bellwire_outbox import Job

    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Failure(
                Exit.APP,
                f"no module named {error.name}: start in the folder that holds it, or install it "
                f"(looked for {module_name} from {Path.cwd()})",
            ) from None
        raise _raised(module_name, error) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a user's module raises, `sys.exit(0)` included
        raise _raised(module_name, error) from None
    found: Any = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            apps = sorted(n for n, value in vars(module).items() if isinstance(value, App))
            instead = f"it has {', '.join(f'{module_name}:{n}' for n in apps)}" if apps else "it holds no App"
            raise Failure(Exit.APP, f"{module_name} has no attribute {attribute}; {instead}") from None
    if isinstance(found, type) and issubclass(found, Job):
        apps = sorted(f"{module_name}:{n}" for n, value in vars(module).items() if isinstance(value, App))
        instead = f": {', '.join(apps)}" if apps else ""
        raise Failure(Exit.APP, f"{path} is a Job class, not an App; name the module's App{instead}")
    if not isinstance(found, App):
        raise Failure(Exit.APP, f"{path} is a {type(found).__name__}, not a bellwire.consumer.App")
    return found


def declared(app: "App[Any]") -> "list[KindPolicy]":
    """What the app declares, or in one line what of it cannot work or is not built yet."""
    from bellwire_schema.errors import ConfigError

    try:
        return app.declared()
    except ConfigError as error:
        raise Failure(Exit.APP, str(error)) from None


def _raised(module_name: str, error: BaseException) -> Failure:
    """Names the user's own line: the last frame that is neither the import machinery nor a library's."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ][1:]
    own = [frame for frame in frames if "bellwire_" not in frame.filename]
    own = [frame for frame in own if "site-packages" not in frame.filename] or own
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    said = redact(str(error)).strip().splitlines()
    reason = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return Failure(Exit.APP, f"importing {module_name} failed{where}: {reason}")
