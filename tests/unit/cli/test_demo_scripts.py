"""`make demo` finds the training scripts of the checkout."""

from trainmaster.cli.live.demo import _examples, _jobs


def test_the_demo_finds_its_scripts() -> None:
    folder = _examples()
    for job in _jobs(folder):
        script = job["command"][1]
        assert script.startswith(str(folder)) or "-m" in job["command"] or "-c" in job["command"]


def test_the_demo_declares_no_speed_for_it_is_another_on_every_machine() -> None:
    assert not [job["name"] for job in _jobs(_examples()) if "steps_per_s" in job]
