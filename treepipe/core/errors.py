"""The errors of treepipe, split by whose fault they are."""


class UserError(Exception):
    """The user's input is wrong: one clear sentence naming file, key and the valid values.

    The command line prints the sentence and exits with code 2; no traceback.
    """


class UnknownKeyError(UserError):
    """A file has an unknown key, whatever the other keys say."""


class ProtocolError(Exception):
    """A world sent a schedule or a stage an illegal event; nothing was changed."""


class RunError(Exception):
    """A run failed for a reason outside the user's input (a worker died); exit code 1."""
