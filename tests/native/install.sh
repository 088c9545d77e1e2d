#!/bin/sh
# install.sh BUILD SOURCE CMAKE CXX: `cmake --install` gives a folder that programs build and run with, from any shell;
# its library exports what the headers declare and what torch_npu looks up, beside C++ functions for the Python module,
# and needs what every system has.
set -eu
build=$1 source=$2 cmake=$3 cxx=$4
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
"$cmake" --install "$build" --component sdk --prefix "$home/sdk" >/dev/null
unset ASCEND_CUSTOM_PATH ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME LD_LIBRARY_PATH CMAKE_PREFIX_PATH || true
. "$home/sdk/set_env.sh"
[ "$ASCEND_CUSTOM_PATH" = "$home/sdk" ]
[ "$ASCEND_HOME_PATH$ASCEND_TOOLKIT_HOME" = "$home/sdk$home/sdk" ]
names=$(cd "$home/sdk/lib64" && echo lib*.so)
for name in acl_op_compiler acl_rt ascendcl descend hccl nnopbase opapi opapi_math opapi_nn opapi_transformer; do
  case " $names " in *" lib$name.so "*) ;; *) exit 1 ;; esac
done
processor=$(ls -d "$home"/sdk/*-linux)
[ -e "$processor/include/acl/acl.h" ] && [ -e "$processor/lib64/libopapi.so" ] && [ -e "$processor/devlib/libopapi.so" ]
if command -v bash >/dev/null; then
  sourced=$(bash -c ". '$home/sdk/bin/setenv.bash' && echo \$ASCEND_HOME_PATH \$LD_LIBRARY_PATH" | tr ' ' '\n' | head -1)
  [ "$sourced" = "$home/sdk" ]
fi
# Given as a relative path, and with an apostrophe in it.
(cd "$home" && "$cmake" --install "$build" --component sdk --prefix "it's/sdk" >/dev/null)
[ "$(sh -c '. "$1/set_env.sh" && echo "$ASCEND_CUSTOM_PATH"' sh "$home/it's/sdk")" = "$home/it's/sdk" ]
library=$home/sdk/lib64/libdescend.so

if command -v nm >/dev/null; then
  nm -D --defined-only "$library" | awk '$NF !~ /^_Z[A-Za-z]*7descend/ { print $NF }' | sort >"$home/exported"
  find "$home/sdk/include" -name '*.h' -exec cat {} + | tr '\n' ' ' | grep -oE 'ACL_FUNC_VISIBILITY [^;(]*\(' |
    grep -oE '[A-Za-z0-9]+ *\($' | tr -d ' (' | sort >"$home/declared"
  [ "$(wc -l <"$home/declared")" -gt 100 ]
  [ -z "$(comm -23 "$home/declared" "$home/exported")" ]
  # What no header declares is what libraries look up and cannot be served here, or answers that there is no profiler.
  for name in $(comm -13 "$home/declared" "$home/exported"); do
    (cd "$source/native/capi" && grep -qw "$name" unsupported.cpp profiling.cpp collectives.cpp) || { echo "$name"; exit 1; }
  done
fi
if command -v readelf >/dev/null; then
  needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  [ -n "$needed" ]
  # Before glibc 2.34 threads and dlopen are libraries of their own.
  if echo "$needed" | grep -vE '^(libc|libm|libstdc\+\+|libgcc_s|ld-linux-[a-z0-9-]+|libpthread|libdl)\.so\.[0-9]+$'; then
    exit 1
  fi
fi

mkdir "$home/program"
cp "$source"/examples/cpp/* "$home/program"
cd "$home/program"
libraries="-lascendcl -lacl_rt -lacl_op_compiler -lnnopbase -lopapi -lopapi_nn -lopapi_math -lopapi_transformer"
for program in *.cpp; do
  "$cxx" "$program" "-I$ASCEND_CUSTOM_PATH/include" "-L$ASCEND_CUSTOM_PATH/lib64" $libraries -o program
  ./program >output
  cat output
  grep -q '[0-9]\.[0-9]' output
  ! grep -qi nan output
done

cat >CMakeLists.txt <<'TEXT'
cmake_minimum_required(VERSION 3.14)
project(program CXX)
find_package(descend 0.1 REQUIRED)
add_executable(found rms_norm_grad.cpp)
target_link_libraries(found PRIVATE descend::descend)
TEXT
"$cmake" -S . -B build "-DCMAKE_CXX_COMPILER=$cxx" >/dev/null
"$cmake" --build build >/dev/null
./build/found | grep dgamma
