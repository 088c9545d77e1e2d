#!/bin/sh
# install.sh BUILD SOURCE CMAKE CXX: `cmake --install` gives a folder that programs build and run with, from any shell.
set -eu
build=$1 source=$2 cmake=$3 cxx=$4
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
"$cmake" --install "$build" --prefix "$home/sdk" >/dev/null
unset ASCEND_CUSTOM_PATH ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME LD_LIBRARY_PATH CMAKE_PREFIX_PATH || true
. "$home/sdk/set_env.sh"
[ "$ASCEND_CUSTOM_PATH" = "$home/sdk" ]
[ "$ASCEND_HOME_PATH$ASCEND_TOOLKIT_HOME" = "$home/sdk$home/sdk" ]

mkdir "$home/program"
cp "$source/examples/cpp/rms_norm_grad.cpp" "$source/examples/cpp/device.h" "$home/program"
cd "$home/program"
"$cxx" rms_norm_grad.cpp "-I$ASCEND_CUSTOM_PATH/include" "-L$ASCEND_CUSTOM_PATH/lib64" -lascendcl -lnnopbase -lopapi \
  -lopapi_nn -lopapi_math -lopapi_transformer -o program
./program | grep dgamma

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
