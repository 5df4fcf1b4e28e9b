"""The agent: decide what comes next (pure), then do it in the order that the guarantees rest on."""
