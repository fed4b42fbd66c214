"""The measurements of ``treepipe calibrate``: devices, links and acceptance on this machine."""
