"""The model of time: what work takes on a device and a message on a link."""
