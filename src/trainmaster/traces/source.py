"""Bytes of an input file, gzip undone, text decoded; every failure names the file and the place."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainmaster.model.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_BYTES_MAX = 4 << 30


@dataclass(frozen=True)
class Source:
    """One input file in memory: `data` is uncompressed, `path` is what messages name."""

    path: Path
    data: bytes

    @property
    def is_parquet(self) -> bool:
        return self.data.startswith(_PARQUET_MAGIC)

    @cached_property
    def head(self) -> str:
        """The first 64 KiB as text, broken characters replaced: for recognising formats only."""
        return self.data[: 1 << 16].removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")

    @cached_property
    def first_line(self) -> str:
        return self.head.split("\n", 1)[0].rstrip("\r")

    def text_bytes(self) -> bytes:
        """UTF-8 bytes with `\\n` line ends and no byte-order mark; anything else is an `InputError`."""
        data = self.data.removeprefix(b"\xef\xbb\xbf")
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise InputError(
                f"byte 0x{data[error.start]:02x} is not UTF-8 text",
                "a UTF-8 text file",
                "Convert the file to UTF-8, or check that it is not a damaged or binary file.",
                self.path,
                line,
            ) from None
        if b"\x00" in data:
            line = data.count(b"\n", 0, data.index(b"\x00")) + 1
            raise InputError("the file holds a NUL byte", "a text file", "The file is damaged.", self.path, line)
        return data.replace(b"\r\n", b"\n") if b"\r\n" in data[: 1 << 16] else data


def read_source(path: str | Path) -> Source:
    """Read a file whole, undo gzip if its first bytes say so."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", "an existing trace file", "Check the path.", path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read: {reason}", "a readable file", "", path) from None
    if data.startswith(_GZIP_MAGIC):
        data = _gunzip(data, path)
    return Source(path, data)


def _gunzip(data: bytes, path: Path) -> bytes:
    try:
        plain = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"damaged gzip data ({error})", "a complete gzip file", "Copy or download it again.", path
        ) from None
    if len(plain) > _BYTES_MAX:
        raise InputError("more than 4 GiB when unpacked", "a smaller file", "Slice it first.", path)
    return plain
