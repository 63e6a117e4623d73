"""No credential leaves the process in a text: addresses are shown without their password.

Applied by the logs to every value and by errors that quote an address, so that no caller has to remember it.
"""

import re

__all__ = ["redact"]

# scheme://user:password@host, up to the last "@": a password that should have been escaped is one too …
_IN_URL = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^\s:/@]*):\S*@", re.IGNORECASE)
# … and password=…, as libpq's keyword form and a URL's query string have it, quoted or not.
_KEYWORD = re.compile(r"(?P<head>\b(?:ssl)?password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE)


def redact(text: str) -> str:
    """The text with every password in it replaced by `***`."""
    if "://" in text:
        text = _IN_URL.sub(r"\g<head>:***@", text)
    if "assword" in text or "ASSWORD" in text:
        text = _KEYWORD.sub(r"\g<head>***", text)
    return text
