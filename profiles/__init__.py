"""Profiles that ship with treepipe: devices, links, acceptance; data with its source."""
