#!/usr/bin/env bash
# Makes the virtual environment .venv (or $LLMTRAIN_VENV) with the pinned dependencies. Source it: it leaves $python set.
# torch comes first and by its exact pin, so that no later package chooses another build of it.
venv="${LLMTRAIN_VENV:-.venv}"
python="$venv/bin/python"
stamp="$venv/.llmtrain-$(cat constraints.txt pyproject.toml | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
  echo "Setting up $venv (once, a few minutes) ..."
  "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (set PYTHON)" >&2; exit 1; }
  "${PYTHON:-python3}" -m venv "$venv"
  "$python" -m pip install --quiet --disable-pip-version-check "$(grep '^torch==' constraints.txt)"
  "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
  touch "$stamp"
fi
