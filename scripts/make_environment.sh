#!/usr/bin/env bash
# make_environment.sh [--python PYTHON] [--sees VENV] [--wheels pip] DIR ARGUMENT…: a virtual environment in DIR, filled
# by `uv pip install ARGUMENT…` with the versions of constraints.txt. --sees: torch is VENV's, through a .pth line.
# --wheels pip: wheels in the folders of pip's find-links count, too (a torch without CUDA, which is preferred).
# uv keeps one store of unpacked packages and hard-links each environment to it: no wheel is fetched or unpacked twice,
# and a second environment with the same torch takes no disk. Writes nothing into the packages themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3 sees= wheels=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --python) python=$2 ;;
    --sees) sees=$2 ;;
    --wheels) wheels=$2 ;;
    *) echo "make_environment.sh does not know $1" >&2; exit 2 ;;
  esac
  shift 2
done
dir=$1; shift

# One whose making was interrupted is made anew: half a package looks like a whole one.
[ ! -e "$dir.unfinished" ] || rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
touch "$dir.unfinished"

# The first environment brings the installer; all others are made by it.
uv=.venv/bin/uv
if [ "$dir" = .venv ]; then
  scripts/make_venv.sh "$python" .venv
  # -qq: a pip with a cap or a list of folders warns about each; errors are still shown.
  .venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt uv
elif [ ! -x "$dir/bin/python" ]; then
  echo "making $dir"
  "$uv" venv --quiet --python "$python" "$dir"
fi

# uv does not read pip's settings: an index of one's own, and folders with wheels, are passed on.
pip_setting() { .venv/bin/python -m pip config list 2>/dev/null | sed -n "s/^\(global\|install\|user\|site\|:env:\)\.$1='\(.*\)'$/\2/p" | tail -n 1; }
index=$(pip_setting index-url)
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
if [ "$wheels" = pip ] && [ -z "${UV_FIND_LINKS:-}" ]; then
  folders=$(pip_setting find-links)
  [ -z "$folders" ] || export UV_FIND_LINKS=${folders// /,}
fi
certificates=$(pip_setting cert)
[ -z "$certificates" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificates}

site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# As a site of its own: the rig's .pth files count here, too (tests/fakegpu/inside/rig_settles.py).
if [ -n "$sees" ]; then
  "$dir/bin/python" -c 'import sys; print(f"import site; site.addsitedir({sys.argv[1]!a})")' \
    "$(cd "$sees"/lib/python3*/site-packages && pwd)" >"$site/_rig.pth"
fi
# No bytecode yet: nine tenths of it would never be read. Python writes it for what is imported.
"$uv" pip install --quiet --python "$dir/bin/python" -c constraints.txt "$@"
rm "$dir.unfinished"
