"""Model of time: the time of work on a device and of a message on a link."""
