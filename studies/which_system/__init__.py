"""Which system wins where: all of them on the same clusters, each with its best parameters."""
