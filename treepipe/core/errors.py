"""The errors of treepipe, split by whose fault they are. Nothing else belongs here."""


class UserError(Exception):
    """The user's input is wrong: one clear sentence naming file, key and what would be valid.

    The command line prints the sentence and exits with code 2; no traceback.
    """


class UnknownKeyError(UserError):
    """A file has a key that there is not, whatever the other keys say."""


class ProtocolError(Exception):
    """A world sent a schedule or a stage an event that is not legal now; nothing was changed."""


class RunError(Exception):
    """A run failed for a reason outside the user's input (a worker died); exit code 1."""
