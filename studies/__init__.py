"""Questions answered with both worlds: the demonstration, studies, and their plots."""
