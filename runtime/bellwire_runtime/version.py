"""Which version of the distribution runs; empty where it is not installed as one."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["distribution_version"]


def distribution_version() -> str:
    try:
        return version("bellwire")
    except PackageNotFoundError:
        return ""
