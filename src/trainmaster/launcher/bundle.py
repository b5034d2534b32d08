"""The launcher as one file that any Python 3.8 or newer runs: a zip archive of the modules that it needs."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from importlib import resources

FILE_NAME = "launcher.pyz"
_MODULES = (
    "model/__init__.py",
    "model/foreign.py",
    "model/lease.py",
    "gang/__init__.py",
    "gang/endpoint.py",
    "gang/linux.py",
    "gang/processes.py",
    "gang/protocol.py",
    "gang/timeouts.py",
    "launcher/__init__.py",
    "launcher/__main__.py",
    "launcher/dialing.py",
    "launcher/loop.py",
    "launcher/notices.py",
    "launcher/settings.py",
    "launcher/start_mark.py",
    "launcher/uplink.py",
)
_MAIN = b"import sys\nfrom trainmaster.launcher.__main__ import main\nsys.exit(main())\n"


@cache
def launcher_bytes() -> bytes:
    """The same bytes for the same sources."""
    package = resources.files("trainmaster")
    contents = {"__main__.py": _MAIN, "trainmaster/__init__.py": b""}
    for module in _MODULES:
        contents[f"trainmaster/{module}"] = package.joinpath(*module.split("/")).read_bytes()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in sorted(contents.items()):
            bundle.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def launcher_hash() -> str:
    return hashlib.sha256(launcher_bytes()).hexdigest()[:10]
