"""`make demo` finds the training scripts of the checkout."""

from trainmaster.cli.live.demo import _examples, _jobs


def test_the_demo_finds_its_scripts() -> None:
    folder = _examples()
    for job in _jobs(folder):
        script = job["command"][1]
        assert script.startswith(str(folder)) or "-m" in job["command"] or "-c" in job["command"]
