"""The measurements of `packed-ss bench`: prompts x schedules x modes, the paper's tables and figures, and peers beside them.

plan       what runs: cells, in each of which contenders take turns on the same prompts
engines    one contender: a decoder of ours with its model time, or a peer (`packed_ss.evaluation.peers`)
runner     runs a plan, one record a response, resumable
records    the records' file
bootstrap  paired intervals over prompts
summary    totals of a cell, by contender and prompt
tables     the paper's tables           figures    the paper's figures
latency    one call against its rows    clock      how calls alone are timed
report     tables and figures from a folder of records
"""
