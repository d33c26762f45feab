"""Faults at every await point: a machine that tries to break the loader, for as long as it is let.

A *script* (`core`, `triggers`, `second_level`, `streaming`, `graphql`, `database`) is a small service with
its callers. It runs on a virtual clock, again and again from the start, and each time something goes wrong at another
*moment*, which is the time between two callbacks of the loop: a task is cancelled, a backend fails, is cancelled from
within or answers late, the process stands still for a while, a service is closed, cleared or asked for more. After each
run every caller must have its right value, or an error that this fault permits, and nothing may be left (`world`).
`explore` chooses the faults; `awaits` finds all awaits of the library, so that it is known which of them a fault has
hit.

`tests/test_explorer.py` runs all scripts once; `python -m tests.explorer --rounds N` goes on with pairs of faults.
"""
