#!/usr/bin/env bash
# What failed in the last ctest run of a build folder, in few lines: a reader of a long log starts at its end. Usage: failures.sh BUILD
log=$1/Testing/Temporary/LastTest.log
[ -f "$log" ] || exit 0
echo "==== what failed, from $log"
grep -nE -A8 'Failure$|^\[  FAILED  \]|(WARNING|ERROR): \w+Sanitizer|SUMMARY: |runtime error:|terminate called|test deadline passed|Test failed\.|Test timeout' "$log" |
  grep -vE '^[0-9]+-\[ +(OK|RUN) ' | cut -c1-300 | head -n 200
