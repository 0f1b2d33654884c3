# Fits a network with one Python, and tunes it with another.
set -e
folder=$(dirname "$0")
"$PYTHON" "$folder/fit.py" "$@"
echo "one is done"
"$PYTHON" "$folder/tune.py" "$@"
