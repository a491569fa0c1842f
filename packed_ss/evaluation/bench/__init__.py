"""The measurements of `packed-ss bench`: prompts x schedules x modes, the paper's tables and figures, and what else there is.

plan         what runs: settings, in each of which candidates take turns on the same prompts
engines      one candidate: a decoder of ours with its model time       baselines  others on the same weights
runner       runs a plan, one record a response, resumable              run_records  the records' file
summary      totals of a setting, by candidate and prompt               bootstrap  paired intervals over prompts
tables       the paper's tables        table  how one looks              figures    the paper's figures
report       tables and figures from a folder of records
latency      one call against its rows       clock  how calls alone are timed       bandwidth  what the memory gives
"""
