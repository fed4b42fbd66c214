"""What ``treepipe calibrate`` does: measuring devices, links and acceptance on this machine."""
