"""Says which extra is missing, where Python would only name a module nobody asked for."""

_OURS = "bellwire"


def missing(module: str, install: str, error: ModuleNotFoundError) -> ImportError:
    """The error to raise in place of `error`; that one itself where our own code is at fault."""
    if error.name is None or error.name.partition(".")[0].partition("_")[0] == _OURS:
        return error
    needed = error.name.partition(".")[0]
    return ImportError(f"{module} needs {needed}: pip install '{install}'", name=needed)
