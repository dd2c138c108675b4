"""A command's two steps: what is asked for, where the command line may be wrong, and the work, which may fail."""

import logging
from collections.abc import Callable
from typing import TypeVar

from fedjax_core.reporting import report

Asked = TypeVar("Asked")


def taken(ask: Callable[[], Asked], work: Callable[[Asked], int | None], interrupted: str = "interrupted") -> int:
    """Does both; errors are told in one line.

    Args:
      ask: reads the command line, and whatever must be in order before the work begins.
      work: does what was asked for; the exit status, None for 0.
      interrupted: what an interruption says that says nothing itself.

    Returns:
      The exit status: the work's; 1 for an error of it; 2 for one of `ask`; 130 after an interruption.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        asked = ask()
    except (ValueError, TypeError) as error:
        return report.fail(error, 2)
    try:
        return work(asked) or 0
    except KeyboardInterrupt as error:
        return report.fail(error if str(error) else interrupted, 130)
    except (ValueError, TypeError, OSError) as error:
        return report.fail(error, 1)
