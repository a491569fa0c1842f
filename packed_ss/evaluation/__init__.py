"""Measuring and checking decoders: schedules side by side, teacher-forced verification, benchmarks, figures."""
