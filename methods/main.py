"""Runs a federated experiment, or resumes it: `fedjax-core run` under the name that works from a checkout.

python -m methods.main --config=configs/fedavg.py --workdir=runs/fedavg
python -m methods.main --config=configs/fedavg.py:smoke --workdir=runs/smoke --config.rounds=10
"""

import sys

from fedjax_core.commands.main import run_and_exit

if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.run", sys.argv[1:])
