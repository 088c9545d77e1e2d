#!/bin/sh
# kernel_calls.sh ARCHIVE: the AVX-512 and AVX2 kernels call nothing of our own that was compiled for the baseline, and
# have no string instructions, nor loops that copy bytes. Such a call costs some 70 ns: its instructions wait for the
# upper halves of the registers, which theirs do not clear. A string instruction waits, some 110 ns, until what was
# stored past the caches has left. (Those of bytes are let be: the compiler has them where code is not expected to run.)
# A memcpy() of fewer bytes than the compiler knows a bound of is a loop over them, of up to 255 turns.
# Rows that are computed anew in double (exact_*) are let be, too: there are few, and each takes long by itself. So is
# kept_room(): only long rows call it, once for all rows of a thread.
set -eu
command -v objdump >/dev/null || exit 77
calls=$(objdump -dr --no-show-raw-insn "$1" | c++filt | awk '
  function number(hex, i, value) {
    for (i = 1; i <= length(hex); ++i) value = 16 * value + index("0123456789abcdef", substr(hex, i, 1)) - 1
    return value
  }
  function judge(caller, callee) {
    if (callee !~ /N_AVX[23]::|descend::kernels::([a-z0-9]+::)?(.anonymous namespace.::)?(exact_|kept_room)/ && callee ~ /descend::|\.text/) print caller " calls " callee
  }
  function check() {
    # What only this file calls goes by its place in .text, counted from the end of the call, 4 bytes on.
    if (target ~ /^\.text[-+]0x/) {
      callers[++pending] = name
      places[pending] = (target ~ /-/ ? -1 : 1) * number(substr(target, 9)) + 4
    } else if (target != "") {
      judge(name, target)
    }
    target = ""
  }
  function end_file() {
    check()
    for (; pending > 0; --pending) judge(callers[pending], places[pending] in local ? local[places[pending]] : ".text")
    split("", local)
  }
  /R_X86_64_/ && target != "" { target = $0; sub(/.*R_X86_64_[A-Z0-9]+[ \t]*/, "", target) }
  { if (!/R_X86_64_/) check() }
  /file format/ { end_file() }
  /^Disassembly of section/ { in_text = $4 == ".text:" }
  /^[0-9a-f]+ </ {
    name = $0
    sub(/^[0-9a-f]+ </, "", name)
    kernel = name ~ /N_AVX[23]::/
    kernels += kernel
    if (in_text) local[number($1)] = name
  }
  kernel && /\trep[a-z]* (stos|movs)/ && !/movsb|%al/ { print name " has a string instruction:" $0 }
  kernel && index_of != "" && /\tmov +%[a-z0-9]+,/ && index($0, index_of) { print name " copies byte by byte:" $0 }
  { index_of = kernel && /\tmovzbl / && match($0, /,%r[a-z0-9]+,1\)/) ? substr($0, RSTART, RLENGTH) : "" }
  # What a call names, unless the relocation on the next line says otherwise.
  kernel && /\tcall / { target = $0; sub(/.*call +/, "", target) }
  END { end_file(); if (kernels == 0) print "no kernels found" }
')
if [ -n "$calls" ]; then
  printf '%s\n' "$calls" | sort -u
  exit 1
fi
