"""Hooks for schemathesis: use existing names now and then, do not wait for messages, and leave maintenance off."""

import zlib

import schemathesis

KNOWN = {"queue": "orders", "partition": "p1", "group": "billing"}


@schemathesis.hook
def map_query(context, query):
    if query and "wait" in query:
        query["wait"] = "false"
    return query


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    for name, known in KNOWN.items():
        # Derived from the generated value, so that a seed is reproducible.
        if path_parameters and name in path_parameters and zlib.crc32(repr(path_parameters[name]).encode()) % 3:
            path_parameters[name] = known
    return path_parameters


@schemathesis.hook
def map_body(context, body):
    # With it on, every transaction waits for the spool until its timeout.
    if context.operation.path.startswith("/api/v1/system/maintenance") and isinstance(body, dict) and body.get("enabled"):
        body["enabled"] = False
    return body
