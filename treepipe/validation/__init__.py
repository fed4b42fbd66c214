"""Predict and run, and judge the difference: validation, demonstration, the standard grid."""
