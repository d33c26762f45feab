"""The demo: flights out of New York City in January 2013 as a GraphQL service.

A service to copy the shape of; docs/demo.md says how it is run. `settings` are read once. `models` says what the tables
are; `rows` and `build` fill them from the CSV files, in a file (`sqlite`) or on a server (`postgres`); `database` opens
sessions; `loaders` says what is looked up by which key. `graph` has the graph's objects and `schema` its root, of which
`delays`, `board`, `statistics` and `search` are parts: a mutation, a subscription, a snapshot, a debounced
subscription. `limits` bound what an operation may ask, `view` answers requests of any kind, `log` and `metrics` say
what they took. `service` is what all requests share; `app` wires them together; `server` runs it in one process or in
several; `__main__` is the command line.
"""
