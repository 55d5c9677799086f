"""Names that a tenant may give a directory by `subPath`, as a table of mounts has them."""

from __future__ import annotations

from typing import Final

# Line ends and blanks for str.splitlines, which the kernel leaves as they are, and what is no UTF-8.
SUB_PATHS: Final = ("a\u2028b".encode(), b"a\xc2\x85b", b"a\xffb", b"a\x0cb", b"a\rb", b"a\x1cb", rb"a\040b")
