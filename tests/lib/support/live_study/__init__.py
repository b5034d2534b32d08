"""Five schedulers with real elastic PyTorch jobs on one machine, beside their simulated twins.

python -m support.live_study --policies oasis,dl2 --repeats 3 --out out/live-study
"""
