"""The study ``which-system``: all systems on the same clusters, each with its best parameters."""
