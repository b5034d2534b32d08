"""Whether the command was started before in this pod: a file in a folder that outlives the container, not the pod."""

from __future__ import annotations

import os


class StartMark:
    """Without a folder there is no memory: the pod must then have `restartPolicy: Never`."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "started") if folder else ""

    @property
    def exists(self) -> bool:
        return bool(self._path) and os.path.exists(self._path)

    def set(self) -> bool:
        """False if it was set before, or cannot be."""
        if not self._path:
            return True
        try:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError:
            return False
        return True
