"""What commands print."""

import logging
import subprocess
import sys

from fedjax_core.reporting import console


def test_warnings_hold_nothing_that_a_terminal_obeys():
    """A class of a data set may be called anything; a command logs it as Python writes it."""
    code = (
        "import logging\n"
        "from fedjax_core.reporting import console\n"
        "console.send_warnings_to_stderr()\n"
        "logging.getLogger('fedjax_core').warning('class %s', 'red\\x1b[31m')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == "class red\\x1b[31m\n"
    record = logging.LogRecord("fedjax_core", logging.WARNING, "x.py", 1, "a\x1b[2J", None, None)
    assert console._SafeFormatter("%(message)s").format(record) == "a\\x1b[2J"
