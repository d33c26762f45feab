"""The demo: flights out of New York City in January 2013 as a GraphQL service.

A service to copy the shape of. `models` says what the tables are; `rows` and `build` fill them from the CSV files;
`database` opens sessions; `loaders` says what is looked up by which key; `schema` is the graph; `app` wires them
together; `__main__` is the command line.
"""
