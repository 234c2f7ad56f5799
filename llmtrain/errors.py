"""The one kind of error that a user can cause and can mend."""

from __future__ import annotations


class UserError(Exception):
    """A problem the user can mend; shown as one paragraph, without a stack trace.

    The message says what is wrong, where it is, and what to do about it.
    """
