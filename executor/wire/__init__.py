"""What travels: the transport, its records and messages, keys, addresses and clocks."""
