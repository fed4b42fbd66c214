"""Files of any kind: TOML and JSON in, folders and outputs checked, tables validated."""
