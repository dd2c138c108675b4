# All measurements on an accelerator, in resumable pieces:
#   sh tests/benchmarks/accelerator.sh OUT [--only=rate,published] [--data=DIR] [--seconds=540] [--toy]
# Exit status: 0 all is done, 75 more is left, 1 the rest was given up. Repeat: until sh ... OUT; do [ $? = 75 ] || break; done
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
PYTHONSAFEPATH=1 PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m tests.benchmarks.accelerator "$@"
