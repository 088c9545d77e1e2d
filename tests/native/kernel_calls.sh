#!/bin/sh
# kernel_calls.sh ARCHIVE: the AVX-512 and AVX2 kernels call nothing of our own that was compiled for the baseline. Such a
# call costs some 70 ns: its instructions wait for the upper halves of the registers, which theirs do not clear.
set -eu
command -v objdump >/dev/null || exit 77
calls=$(objdump -dr --no-show-raw-insn "$1" | c++filt | awk '
  function check() {
    if (target != "" && target !~ /N_AVX[23]::/ && target ~ /descend::|\.text/) print name " calls " target
    target = ""
  }
  /R_X86_64_/ && target != "" { target = $0; sub(/.*R_X86_64_[A-Z0-9]+[ \t]*/, "", target) }
  { check() }
  /^[0-9a-f]+ </ { name = $0; sub(/^[0-9a-f]+ </, "", name); kernel = name ~ /N_AVX[23]::/; kernels += kernel }
  # What a call names, unless the relocation on the next line says otherwise.
  kernel && /\tcall / { target = $0; sub(/.*call +/, "", target) }
  END { check(); if (kernels == 0) print "no kernels found" }
')
if [ -n "$calls" ]; then
  printf '%s\n' "$calls" | sort -u
  exit 1
fi
