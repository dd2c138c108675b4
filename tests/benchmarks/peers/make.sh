#!/bin/sh
# Makes the peers' environments under build/peers, from the pins beside this file. PYTHON is 3.11; BlazeFL takes FREE_PYTHON, a 3.14
# without the GIL.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
place="$here/../../../build/peers"
mkdir -p "$place"
for peer in ${*:-torch fedjax pfl pfllib flower blazefl}; do
  echo "$peer"
  python=${PYTHON:-python3.11}
  if [ "$peer" = blazefl ]; then python=${FREE_PYTHON:-python3.14t}; fi
  "$python" -m venv "$place/$peer"
  if [ "$peer" != fedjax ]; then # torch first, so that nothing else chooses its build
    "$place/$peer/bin/pip" install -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r "$here/torch.txt"
  fi
  "$place/$peer/bin/pip" install -q -r "$here/$peer.txt"
done
