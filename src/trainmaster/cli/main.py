"""The `trainmaster` command: the list of sub-commands, and nothing else."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import click

from trainmaster import __version__
from trainmaster.cli.shared.lazy import Entry, LazyGroup

_LIVE, _JOBS, _STUDY, _LEARN = "Service", "Jobs", "Simulation", "Measuring and learning"

_ALL = (
    Entry(
        "up",
        "live.up:up",
        _LIVE,
        "Start the service on this machine: REST interface, scheduler, store, and processes of jobs.",
    ),
    Entry("nodes", "live.nodes:nodes", _LIVE, "List the nodes: what they have, what is free, who runs there."),
    Entry("events", "live.events:events", _LIVE, "What happened, in order; -f follows."),
    Entry("policy", "live.policy:policy", _LIVE, "Show the policy of the service, or change it."),
    Entry("entities", "live.entities:entities", _LIVE, "List the teams with weights, quotas and policies, or set one."),
    Entry("doctor", "live.doctor:doctor", _LIVE, "Check the installation and say how to mend it."),
    Entry("whatif", "live.whatif:whatif", _LIVE, "Say what another policy, other nodes or jobs would do to the queue."),
    Entry(
        "experience",
        "live.experience:experience",
        _LIVE,
        "Write states, actions and rewards, to train on (operators).",
    ),
    Entry("accuracy", "live.accuracy:accuracy", _LIVE, "Say how good the predicted finish times were."),
    Entry("submit", "live.submit:submit", _JOBS, "Submit a job and print its id.", takes_command=True),
    Entry("run", "live.run:run", _JOBS, "Submit a job, follow its log, exit with its code.", takes_command=True),
    Entry("queue", "live.queue:queue", _JOBS, "List the jobs that wait and run, with reason, slack and ETA."),
    Entry("job", "live.job:job", _JOBS, "Show all about one job."),
    Entry("why", "live.why:why", _JOBS, "Say why a job waits, who holds what it needs, and what would start it."),
    Entry("logs", "live.logs:logs", _JOBS, "Print a job's log; -f follows it to the end."),
    Entry("cancel", "live.control:cancel", _JOBS, "Cancel jobs."),
    Entry("pause", "live.control:pause", _JOBS, "Pause jobs: they free their GPUs and keep their progress."),
    Entry("resume", "live.control:resume", _JOBS, "Put paused jobs back into the queue."),
    Entry("edit", "live.edit:edit", _JOBS, "Change priority, deadline, run time or size of a job."),
    Entry("resize", "live.control:resize", _JOBS, "Change how many workers a job may have."),
    Entry("kube", "live.kube:app", _LIVE, "Install on Kubernetes."),
    Entry("demo", "live.demo:demo", _LIVE, "Watch small PyTorch jobs scheduled, resized and finished, with their ETA."),
    Entry(
        "simulate",
        "simulation.simulate:simulate",
        _STUDY,
        "Run a policy on a trace, event to event, and say how it did.",
    ),
    Entry(
        "compare",
        "simulation.compare:compare",
        _STUDY,
        "Run every policy on every trace, cluster, load and seed, and say who wins by how much.",
    ),
    Entry("report", "simulation.report:report", _STUDY, "Rebuild report.html, and print the table."),
    Entry(
        "solve",
        "simulation.solve:solve",
        _STUDY,
        "Solve an allocation instance (shares of accelerators) or an admission instance (OASiS).",
    ),
    Entry("policies", "simulation.policies:policies", _STUDY, "List the policies, or describe one with its options."),
    Entry("traces", "simulation.traces:app", _STUDY, "Describe, convert, generate, fit and slice job traces."),
    Entry(
        "profile",
        "learning.profile:profile",
        _LEARN,
        "Measure a program's speed at several sizes on this machine.",
        takes_command=True,
    ),
    Entry(
        "learn", "learning.learn:learn_app", _LEARN, "Train policies that learn, and compare them with the baselines."
    ),
)
ENTRIES = tuple(entry for entry in _ALL if find_spec(entry.module))


@click.command(
    cls=LazyGroup,
    entries=ENTRIES,
    no_args_is_help=True,
    help="Schedule deep-learning training on GPU clusters: choose a policy in the simulator, then run it.",
)
@click.version_option(__version__, prog_name="trainmaster", message="%(prog)s %(version)s")
def app() -> None:
    pass


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # a log or a name that the terminal cannot show is no reason to fail
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    app()


if __name__ == "__main__":
    main()
