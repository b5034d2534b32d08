"""`launcher.pyz -- COMMAND ARGS...`: see the package."""

from __future__ import annotations

import os
import sys

from trainmaster.gang.protocol import EXIT_NOT_RUN
from trainmaster.launcher.loop import Launcher
from trainmaster.launcher.settings import BadSettings, read_settings, unfolded


def main() -> int:
    words = sys.argv[1:]
    words = words[1:] if words[:1] == ["--"] else words
    try:
        if not words:
            raise BadSettings("no command; expected launcher.pyz -- COMMAND ARGS...")
        env = unfolded(os.environ)
        settings = read_settings(env)
    except BadSettings as error:
        sys.stderr.write(f"trainmaster: {error}\n")
        return EXIT_NOT_RUN
    return Launcher(settings, words, env).run()


if __name__ == "__main__":
    sys.exit(main())
