"""What `bench/device_check.py` runs on a machine with a GPU: a driver, its stages, and what the stages share.

=================== ================================================================================================
driver, processes   stages in order within a budget of time, each in a process of its own that may crash or hang
record, plots       the JSON file, the table and the figures
machine, workspace  what the machine is; the copy of the sources that the stages run from
models              random weights in the shapes of the public checkpoints; the clock is `packed_ss.evaluation.bench.clock`
stages              their order, estimates and sizes; every other module is one stage, with a function ``run``
=================== ================================================================================================

Every stage also runs on a CPU at small sizes (``--device cpu``), uncaptured: to find its own faults, not to measure.
"""
