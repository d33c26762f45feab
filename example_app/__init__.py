"""The demo: flights out of New York City in January 2013 as a GraphQL service.

A service to copy the shape of. `models` says what the tables are; `rows` and `build` fill them from the CSV files;
`database` opens sessions; `loaders` says what is looked up by which key. `graph` has the graph's objects and `schema`
its root, of which `delays`, `board`, `statistics` and `search` are parts: a mutation, a subscription, a snapshot, a
debounced subscription. `service` is what all requests share; `app` wires them together; `__main__` is the command line.
"""
