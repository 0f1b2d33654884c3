#!/usr/bin/env bash
# What the action does: installs the tool, checks the program, and sets the outputs. Everything comes through the environment.
set -euo pipefail

python=${INPUT_PYTHON:-python}
reports=${INPUT_REPORTS:-determinism-reports}
fail_on=${INPUT_FAIL_ON:-different}

case $fail_on in different | inconclusive | never) ;; *)
    echo "::error title=determinism::fail-on is '$fail_on', so nothing was run. Give different, inconclusive or never."
    exit 2 ;;
esac
if [ -z "${INPUT_COMMAND:-}" ]; then
    echo "::error title=determinism::command is empty, so nothing was run. Give what is to be checked, such as: python train.py"
    exit 2
fi

if [ "${INPUT_INSTALL:-true}" = true ]; then
    "$python" -m pip install --quiet --disable-pip-version-check "$ACTION_FOLDER/../../.."
fi
mkdir -p "$reports"
rm -f "$reports/report.json"

# Words as a shell would split them, each ended by a zero byte; expansions and commands in them are not run.
words() { "$python" -c 'import shlex, sys; sys.stdout.write("".join(f"{word}\0" for word in shlex.split(sys.argv[1])))' "$1"; }
mapfile -d '' -t options < <(words "${INPUT_OPTIONS:-}")
mapfile -d '' -t program < <(words "$INPUT_COMMAND")

status=0
"$python" -m determinism check --annotate --json "$reports/report.json" --html "$reports/report.html" \
    --sarif "$reports/report.sarif" --junit "$reports/junit.xml" ${options[@]+"${options[@]}"} -- \
    "${program[@]}" || status=$?

verdict=$("$python" - "$reports/report.json" <<'READ' || echo inconclusive
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    print(json.load(file)["verdict"])
READ
)
if [ -n "${GITHUB_OUTPUT:-}" ]; then
    printf 'verdict=%s\nreports=%s\n' "$verdict" "$reports" >> "$GITHUB_OUTPUT"
fi

case $status/$fail_on in
    0/* | 1/inconclusive | */never) exit 0 ;;
    *) exit "$status" ;;
esac
