"""The real service, started anew whenever it is killed, for kill loops.

`python -m support.forked_service HOME NODES POLICY`: everything is loaded once and each service is a
fork of that, so that fifty deaths do not take minutes; apart from short pauses after failures it is the service
as `trainmaster up` runs it. Its pid is written to `HOME/driver.pid` when it answers requests, and in every third
life at once, so that it is also killed while it starts.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from trainmaster.engine.records import Settings
from trainmaster.policies.registry import create
from trainmaster.service.local.home import Home, HomeTaken
from trainmaster.service.local.platform import LocalPlatform
from trainmaster.service.options import ServiceOptions
from trainmaster.service.service import Service

TAKEN = 17
"""Exit code: a process of the service before has not quite gone."""


class _Impatient(LocalPlatform):
    def settings(self) -> Settings:
        return replace(super().settings(), backoff_ms=50, resend_ms=500)


def _serve(options: ServiceOptions, life: int) -> int:
    def show(_: str = "") -> None:
        (options.home / "driver.pid").write_text(str(os.getpid()))

    if life % 3 == 2:
        show()
    try:
        Service(options, _Impatient(options, Home(options.home))).run(show)
    except HomeTaken:
        return TAKEN
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(arguments: list[str]) -> int:
    home, nodes, policy = arguments
    options = ServiceOptions(home=Path(home), port=0, nodes=nodes, policy=policy, quiet=True)
    create(policy)  # loaded once, before the first fork
    for life in itertools.count():
        pid = os.fork()
        if pid == 0:
            os._exit(_serve(options, life))
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in (-9, TAKEN):
            print(f"the service ended by itself with {code}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
