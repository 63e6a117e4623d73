"""For tests: the types behind the fixture `bellwire`, which the wheel's pytest plugin provides."""

from bellwire._extras import missing

try:
    from bellwire_testkit.harness import Harness
    from bellwire_testkit.result import Result
except ModuleNotFoundError as error:
    raise missing(__name__, "bellwire[testing]", error) from None

__all__ = ["Harness", "Result"]
