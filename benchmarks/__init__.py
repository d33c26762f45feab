"""Measurements beside the peers, in one run: `python -m benchmarks`.

Each part is a module whose `tables()` yields what it measured. `table.py` has what tables are made of, `rounds.py` how
ways are measured in turns, `schema.py` what requests are made to; `chart.py` and `pages.py` are for showing.
"""
