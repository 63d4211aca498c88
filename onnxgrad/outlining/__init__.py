"""Which bindings a local function holds: by kind, in groups, and as the functions themselves."""
