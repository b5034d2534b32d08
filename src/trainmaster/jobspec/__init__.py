"""The one schema of a job: REST, YAML files, command-line options and TrainingJobs are read and written by it.

`model` and `schema` import neither the engine nor numpy: clients and training scripts may use them. `engine` and `diff`
translate to what the engine takes.
"""
